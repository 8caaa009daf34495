"""What `paceline bandwidth` has its workers do: `python -m paceline.comm.measuring PLAN`, on every worker."""
