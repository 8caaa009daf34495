"""Splits a flat tensor into parts and chunks. Every worker computes the same split without communication."""

from __future__ import annotations

import torch

ALIGNED = 64  # elements: two workers never write to the same cache line


def cut(length: int, parts: int) -> list[tuple[int, int]]:
    """The (start, end) indices of each part. All parts have the same length, except that the last parts may be shorter
    or empty."""
    step = -(-length // parts)
    step = -(-step // ALIGNED) * ALIGNED
    return [(min(part * step, length), min((part + 1) * step, length)) for part in range(parts)]


def chunks(flat: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Views of at most `size` bytes each. An empty list for an empty tensor."""
    return list(flat.split(max(1, size // flat.element_size()))) if flat.numel() else []
