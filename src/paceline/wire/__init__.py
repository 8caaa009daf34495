"""The authenticated link between a worker and its launcher."""
