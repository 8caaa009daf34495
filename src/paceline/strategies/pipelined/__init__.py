"""The parts of `Pipeline`."""
