"""Calls computed in slices: the proof, the cuts, the gradients."""
