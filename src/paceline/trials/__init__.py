"""Series of trials (short runs that measure something) and their verdicts. Only the command line prints them."""
