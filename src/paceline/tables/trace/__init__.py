"""A torch trace, read into columns: what the tables are made of."""
