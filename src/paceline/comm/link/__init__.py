"""A worker's authenticated link to its launcher."""
