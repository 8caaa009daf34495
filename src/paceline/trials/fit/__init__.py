"""The trials of `fit`."""
