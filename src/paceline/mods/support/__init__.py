"""What several mods share, and the parts of large ones."""
