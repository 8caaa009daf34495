"""One file per rule: tables in, findings out."""
