"""Stages of a pipeline: shuffling, repeating, filtering, caching, batching, augmenting."""
