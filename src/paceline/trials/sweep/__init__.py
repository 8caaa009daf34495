"""`sweep`: throughput by batch size."""
