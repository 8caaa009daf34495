"""The worker program of `paceline bandwidth`: every worker runs `python -m paceline.comm.measuring PLAN`."""
