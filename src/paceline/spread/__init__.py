"""Tensors of which each worker holds a part: how they look whole, and how what is written reaches the parts."""
