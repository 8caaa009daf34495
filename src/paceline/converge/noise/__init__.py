"""The gradient noise scale, and the critical batch size that follows from it."""
