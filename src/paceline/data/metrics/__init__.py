"""The cost of each stage of a pipeline: measured, reported, recorded."""
