"""Copies batches to a device."""
