"""What verbs share: options, consoles, progress."""
