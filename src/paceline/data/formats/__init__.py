"""File formats: one module a format, and the registry that chooses one by file name."""
