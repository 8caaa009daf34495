"""How sharp a minimum is."""
