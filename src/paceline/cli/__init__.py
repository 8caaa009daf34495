"""The command line: one file per verb, for parsing and printing only. Never imports torch."""
