"""The tables that verbs print."""
