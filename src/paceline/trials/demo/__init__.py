"""`demo`: the runs of the demo, their comparison, and the conclusions."""
