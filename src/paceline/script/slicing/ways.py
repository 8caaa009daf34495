"""Ways to cut a call's arguments into slices, likeliest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from paceline.script import tree

Way = tuple[int, dict[int, int]]  # the argument whose size is the batch, and each cut argument's dimension


def ways_to_cut(leaves: list[Any], batch_dim: int) -> Iterator[Way]:
    """Ways to cut the arguments, likeliest first: (the leaf whose size is the batch, {leaf: dimension})."""
    tensors = {i: leaf for i, leaf in enumerate(leaves) if _can_be_cut(leaf)}
    seen: list[dict[int, int]] = []

    def new(cuts: dict[int, int]) -> bool:
        if cuts in seen:
            return False
        seen.append(cuts)
        return True

    for first, leaf in tensors.items():
        if leaf.dim() <= batch_dim:
            continue
        batch = leaf.shape[batch_dim]
        plain = {
            i: dim
            for i, t in tensors.items()
            if t.shape[(dim := batch_dim if t.dim() > batch_dim else 0)] == batch
            and (t.dim() > batch_dim or t.dim() == 1)
        }
        others = {i: list(t.shape) for i, t in tensors.items() if i not in plain}
        deeper = plain | {i: shape.index(batch) for i, shape in others.items() if batch in shape}
        without = [{i: d for i, d in plain.items() if i != left} for left in reversed(plain) if left != first]
        for cuts in [plain, deeper, *without, {first: batch_dim}]:
            if new(cuts):
                yield first, cuts


def _can_be_cut(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.layout is torch.strided


def some_rows(given: Any, leaves: list[Any], cuts: dict[int, int], many: int) -> Any:
    """The arguments with some rows of the batch, evenly spaced."""
    some = list(leaves)
    for i, dim in cuts.items():
        batch = leaves[i].shape[dim]
        chosen = torch.tensor([k * batch // many for k in range(many)], device=leaves[i].device)
        some[i] = leaves[i].detach().index_select(dim, chosen).requires_grad_(leaves[i].requires_grad)
    return tree.rebuild(given, iter(some))
