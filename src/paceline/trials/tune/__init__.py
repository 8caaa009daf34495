"""`tune`: the search for the fastest set of mods."""
