"""`paceline runs`: lists, filters, labels and deletes records."""
