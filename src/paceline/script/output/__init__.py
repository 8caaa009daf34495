"""Output of a script: rank 0 writes the real files, every other rank writes to a scratch folder."""
