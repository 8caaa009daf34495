"""`paceline runs`: lists, filters, labels and deletes records."""

from paceline.cli.runs.verb import add_to

__all__ = ["add_to"]
