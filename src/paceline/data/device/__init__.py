"""Batches on their way to a device."""
