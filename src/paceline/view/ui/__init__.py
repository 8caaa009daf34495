"""The blocks that pages consist of, and their rendering."""
