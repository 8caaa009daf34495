"""Checks of the machine that a run would stand on."""
