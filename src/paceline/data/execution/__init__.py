"""Where the work of a pipeline runs: here, in threads, in processes."""
