"""Ways to cut a call's arguments into slices, likeliest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.script import tree
from paceline.script.proof.graphs import GraphCuts
from paceline.script.rows.crossings import Split, laid_out, memory_order
from paceline.torch_private import OwnTensor

Way = tuple[int, dict[int, int]]  # the argument whose size is the batch, and each cut argument's dimension
MOST = 1024  # ways to cut square arguments


def ways_to_cut(leaves: list[Any], batch_dim: int) -> Iterator[Way]:
    """Ways to cut the arguments, likeliest first: (the leaf whose size is the batch, {leaf: dimension}). Along
    `batch_dim`, then along the first two dimensions (time first, batch second). A dimension of size 1 is no batch."""
    tensors = {i: leaf for i, leaf in enumerate(leaves) if can_be_cut(leaf)}
    seen: set[frozenset[tuple[int, int]]] = set()
    for found in (_likely, _others):
        for dim in dict.fromkeys((batch_dim, 0, 1)):
            for first, leaf in tensors.items():
                if leaf.dim() > dim and leaf.shape[dim] != 1:
                    for cuts in found(tensors, first, dim):
                        if (told := frozenset(cuts.items())) not in seen:
                            seen.add(told)
                            yield first, cuts


def _likely(tensors: dict[int, torch.Tensor], first: int, batch_dim: int) -> list[dict[int, int]]:
    """The dimension of each argument, if the batch is this dimension of the first one: of all that have the batch
    there; and of all that have it anywhere."""
    batch = tensors[first].shape[batch_dim]
    plain = {
        i: dim
        for i, t in tensors.items()
        if t.shape[(dim := batch_dim if t.dim() > batch_dim else 0)] == batch and (t.dim() > batch_dim or t.dim() == 1)
    }
    others = {i: list(t.shape) for i, t in tensors.items() if i not in plain}
    return [plain, plain | {i: shape.index(batch) for i, shape in others.items() if batch in shape}]


def _others(tensors: dict[int, torch.Tensor], first: int, batch_dim: int) -> Iterator[dict[int, int]]:
    """The same, if an argument is as long as the batch by chance."""
    plain, deeper = _likely(tensors, first, batch_dim)
    for left in reversed(plain):
        if left != first:
            yield {i: d for i, d in plain.items() if i != left}
    yield {first: batch_dim}
    # As many time steps as samples: a mask (batch, time) next to tokens (time, batch) fits both ways, and one
    # (time, time) not at all.
    batch = tensors[first].shape[batch_dim]
    fits = {i: [d for d, size in enumerate(tensors[i].shape) if size == batch] for i in deeper if i != first}
    squares = {i: [deeper[i], *(d for d in dims if d != deeper[i]), None] for i, dims in fits.items() if len(dims) > 1}
    for choice in itertools.islice(itertools.product(*squares.values()), 1, MOST):
        chosen: dict[int, int | None] = {**deeper, **dict(zip(squares, choice, strict=True))}
        yield {i: d for i, d in chosen.items() if d is not None}


def fits(way: Way, leaves: list[Any]) -> bool:
    """Whether these arguments can be cut in a way in which others were."""
    _, cuts = way
    if not all(i < len(leaves) and can_be_cut(leaves[i]) and leaves[i].dim() > dim for i, dim in cuts.items()):
        return False
    sizes = {leaves[i].shape[dim] for i, dim in cuts.items()}
    return len(sizes) == 1 and 1 not in sizes


def batch_of(leaves: list[Any], batch_leaf: int, cuts: dict[int, int]) -> int:
    """The number of samples; 0 if the arguments cannot be cut in this way."""
    return cuts.batch(leaves) if isinstance(cuts, GraphCuts) else int(leaves[batch_leaf].shape[cuts[batch_leaf]])


def split_of(leaves: list[Any], batch_leaf: int, cuts: dict[int, int], group: Group) -> Split:
    """How the samples are split among the workers."""
    if isinstance(cuts, GraphCuts):
        return cuts.split(leaves, group)
    return Split.of(group, batch_of(leaves, batch_leaf, cuts))


def can_be_cut(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.layout is torch.strided


def knows_more(leaf: Any) -> bool:
    """Whether an argument is a library's tensor with attributes that its class keeps up with its numbers (names of
    patients, transforms that were applied). They would be those of a slice."""
    if not isinstance(leaf, torch.Tensor) or type(leaf) is torch.Tensor or isinstance(leaf, (nn.Parameter, OwnTensor)):
        return False
    own, plain = (getattr(kind.__torch_function__, "__func__", None) for kind in (type(leaf), torch.Tensor))
    return own not in (None, plain) and bool(vars(leaf))


def some_rows(given: Any, leaves: list[Any], cuts: dict[int, int], many: int, first: int = 0) -> Any:
    """The arguments with some rows of the batch, evenly spaced; graphs one after another, which may be cut after the
    `first` ones."""
    if isinstance(cuts, GraphCuts):
        return tree.rebuild(given, iter(cuts.some(leaves, many, first)))
    some, made = list(leaves), dict[tuple[int, int], torch.Tensor]()
    for i, dim in cuts.items():
        if (id(leaves[i]), dim) in made:  # given twice
            some[i] = made[id(leaves[i]), dim]
            continue
        batch = leaves[i].shape[dim]
        chosen = torch.tensor([k * batch // many for k in range(many)], device=leaves[i].device)
        rows = laid_out(leaves[i].detach().index_select(dim, chosen), memory_order(leaves[i]))
        some[i] = made[id(leaves[i]), dim] = rows.requires_grad_(leaves[i].requires_grad)
    return tree.rebuild(given, iter(some))
