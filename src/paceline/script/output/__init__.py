"""Whose output is seen: rank 0 writes, the other ranks' files are private."""
