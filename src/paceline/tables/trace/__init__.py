"""Reads a torch trace into columns: the basis of all tables."""
