"""Runs on several hosts without ssh: the same command on each, which meet at one of them."""
