"""Code that several verbs share: options, consoles, progress."""
