"""File formats: one file a format, and the registry that picks one."""
