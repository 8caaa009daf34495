"""Two runs side by side: what changed, and why one is slower."""
