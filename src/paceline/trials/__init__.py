"""Plans of short runs, and what they showed. Nothing here prints: the command line does."""
