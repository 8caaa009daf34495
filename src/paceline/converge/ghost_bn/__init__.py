"""Ghost batch norm."""
