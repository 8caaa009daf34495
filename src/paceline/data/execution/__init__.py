"""Runs the work of a pipeline: in the consumer's thread, in threads, or in processes."""
