"""Pipelines on several workers: sharding, shared batches, resuming."""
