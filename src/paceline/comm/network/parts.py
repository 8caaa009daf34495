"""How a flat tensor is shared out: the same cuts on every worker, without a word between them."""

from __future__ import annotations

import torch

ALIGNED = 64  # elements: no two workers write to one cache line


def cut(length: int, parts: int) -> list[tuple[int, int]]:
    """The first and the past-the-last element of each part. All parts but the last ones are equally long; where there
    is not enough for all, the last ones are shorter or empty."""
    step = -(-length // parts)
    step = -(-step // ALIGNED) * ALIGNED
    return [(min(part * step, length), min((part + 1) * step, length)) for part in range(parts)]


def chunks(flat: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Views of `size` bytes or less. None for an empty tensor."""
    return list(flat.split(max(1, size // flat.element_size()))) if flat.numel() else []
