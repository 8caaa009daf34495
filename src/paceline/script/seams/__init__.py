"""The seams of a script, and how each is found."""
