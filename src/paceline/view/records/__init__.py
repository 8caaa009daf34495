"""Records, opened for the pages."""
