"""What pages are made of, and how it looks."""
