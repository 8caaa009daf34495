"""A worker process, from the fork to the end of its script."""
