"""Captures a trace of a few steps of an unmodified script, on every worker."""
