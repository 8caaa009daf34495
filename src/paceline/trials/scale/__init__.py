"""`scale`: throughput by number of workers."""
