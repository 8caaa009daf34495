"""One file a rule: tables in, findings out."""
