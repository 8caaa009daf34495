"""`bandwidth`: rates of a machine's links and collectives."""
