"""`bandwidth`: what the links of a machine carry."""
