"""Adasum: adds gradients so that what they have in common counts once, and what is orthogonal adds up.

For two gradients: a + b, each shortened by half of the other's projection on it. More gradients are combined in a
binary tree of neighbours, each tensor on its own. Every rank gathers all gradients and computes the same tree: simple,
and the result has the same bits on all ranks; it needs memory for one copy of the fused gradients per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.horovod.engine.exchange import Exchange


def adasum(exchange: Exchange, flat: torch.Tensor, lengths: Sequence[int]) -> None:
    """In place. `lengths` are those of the tensors in `flat`. The number of ranks is a power of 2."""
    if exchange.world == 1:
        return
    every = [torch.empty_like(flat) for _ in range(exchange.world)]
    exchange.all_gather(flat, every)
    while len(every) > 1:
        every = [_combine(a, b, lengths) for a, b in zip(every[::2], every[1::2], strict=True)]
    flat.copy_(every[0])


def _combine(a: torch.Tensor, b: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    parts = [_pair(one, other) for one, other in zip(a.split(list(lengths)), b.split(list(lengths)), strict=True)]
    return torch.cat(parts)


def _pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # Squares of small float16 numbers are zero in float16, and those of large ones infinite.
    wide_a, wide_b = a.double(), b.double()
    dot, of_a, of_b = wide_a.dot(wide_b), wide_a.dot(wide_a), wide_b.dot(wide_b)
    keep_a = torch.where(of_a > 0, 1 - dot / (2 * of_a), 1.0)
    keep_b = torch.where(of_b > 0, 1 - dot / (2 * of_b), 1.0)
    return (keep_a * wide_a + keep_b * wide_b).to(a.dtype)
