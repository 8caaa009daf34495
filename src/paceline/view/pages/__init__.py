"""One file per page: a function from a record to blocks. Templates define the appearance of blocks."""
