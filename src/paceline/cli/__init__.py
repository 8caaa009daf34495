"""The command line: one file a verb, parsing and printing only. Never imports torch."""
