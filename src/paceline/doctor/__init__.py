"""Checks whether a machine can run workers."""
