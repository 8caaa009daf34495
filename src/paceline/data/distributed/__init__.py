"""A pipeline on several workers: sharding, shared batches, resuming."""
