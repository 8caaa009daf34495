"""The demo: what it runs, compares and concludes."""
