"""May a call be cut into slices? Proven operation by operation."""
