"""What the stages of a pipeline do."""
