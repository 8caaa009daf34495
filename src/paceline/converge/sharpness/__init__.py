"""Sharpness of the minimum that a run ended in."""
