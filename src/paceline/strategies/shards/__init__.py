"""Parts of the strategy `sharded`: parameters that each worker holds a part of, and what a script may do with them."""
