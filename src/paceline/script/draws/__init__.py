"""Random draws inside a sliced call: own rows get the numbers that one process would have drawn for them."""
