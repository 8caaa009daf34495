"""The arguments of a sliced call: own rows of those with a batch dimension, the others shared."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.script import tree
from paceline.script.proof.graphs import GraphCuts
from paceline.script.proof.side_effects import Place, is_in_module
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.rows.tensor import Rows
from paceline.torch_private import uncompiled

VALUES = (str, bool, int, enum.Enum)


def cut_leaves(given: Any, leaves: list[Any], cuts: dict[int, int], split: Split) -> Any:
    """The arguments for this worker: its own rows of those with a batch dimension, the others shared."""
    if isinstance(cuts, GraphCuts):
        return tree.rebuild(given, iter(cuts.own(leaves, split)))
    made: dict[tuple[int, int | None], Any] = {}  # one object for an argument that is given twice: attention asks
    for i, leaf in enumerate(leaves):
        key = (id(leaf), cuts.get(i))
        if key not in made:
            if i in cuts:
                made[key] = _own_rows(leaf, cuts[i], split)
            else:
                is_tensor = isinstance(leaf, torch.Tensor)
                made[key] = crossings.share(make_plain(leaf), split.group) if is_tensor else leaf
    return tree.rebuild(given, iter([made[id(leaf), cuts.get(i)] for i, leaf in enumerate(leaves)]))


def _own_rows(leaf: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
    """Own rows of an argument; those of another sliced call's output need no message."""
    if isinstance(leaf, Rows) and _rows_along(leaf, dim) == split.sizes:
        return leaf.local
    return crossings.cut(make_plain(leaf), dim, split)


def _rows_along(leaf: Rows, dim: int) -> tuple[int, ...] | None:
    layout = leaf.rows
    return layout.split.times(layout.inner).sizes if layout.dim == dim and layout.outer == 1 else None


def brought_split(leaves: list[Any], cuts: dict[int, int]) -> Split | None:
    """The split that an argument brings along from another sliced call."""
    if isinstance(cuts, GraphCuts):
        return None
    for i, dim in cuts.items():
        if isinstance(leaves[i], Rows) and (sizes := _rows_along(leaves[i], dim)):
            return Split(leaves[i].rows.split.group, sizes)
    return None


def rows_in(leaves: list[Any], cuts: dict[int, int], split: Split) -> dict[int, tuple[int, Split]]:
    """The dimension and the split of each argument that is cut into rows as they are."""
    if isinstance(cuts, GraphCuts):
        return cuts.rows(leaves, split)
    return {i: (dim, split) for i, dim in cuts.items()}


def versions_of(local: list[Any], cuts: Iterable[int]) -> dict[int, int]:
    """How often own rows of each argument have been changed in place; without those that have a gradient."""
    plain = {i: local[i] for i in cuts if not local[i].requires_grad and not local[i].is_inference()}
    return {i: rows._version for i, rows in plain.items()}


def unsharded(given: Any) -> Any:
    """Plain tensors in the place of sharded ones, which stay sharded. Every worker calls it; waits for all of them."""
    wholes: dict[int, torch.Tensor] = {}

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, Rows):
            return leaf
        if id(leaf) not in wholes:
            wholes[id(leaf)] = leaf.whole()
        return wholes[id(leaf)]

    return tree.replace(given, put)


@contextmanager
def sharing(module: nn.Module, states: Iterable[tuple[Place, Any]], group: Group) -> Iterator[None]:
    """Passes tensors that a module holds but that were computed outside it (generated weights, MAML's fast weights)
    through a crossing, like arguments."""
    subject = uncompiled(module)
    own = {(id(subject.get_submodule(place[0])), place[1]) for place, _ in states if is_in_module(place)}
    lent: list[tuple[dict[str, Any], str, Any, Any]] = []
    for m in module.modules() if torch.is_grad_enabled() else ():
        for place in (m._parameters, m._buffers, m.__dict__):
            for name, value in place.items():
                if isinstance(value, torch.Tensor) and value.grad_fn is not None and (id(m), name) not in own:
                    lent.append((place, name, value, crossings.share(value, group)))
    for place, name, _, shared in lent:
        place[name] = shared
    try:
        yield
    finally:
        for place, name, value, shared in lent:
            if place.get(name) is shared:
                place[name] = value


def kinds_of_arguments(leaves: list[Any], *, values: bool, sizes: bool) -> Iterator[Any]:
    """The properties by which calls share a plan. For tensors: the data type, whether it needs a gradient, and which
    dimensions have one entry, or the size of the first tensor's first or second dimension; with `sizes`, the shape. For
    other arguments (a task's name, a flag, the number of a head): the type, and the value as long as there are few
    plans. A factor (a float) counts only if it is 0 or 1, with which an operation may do nothing."""
    shape = next((tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()), ())
    first, second, graphs = shape[:1], shape[1:2], torch.is_grad_enabled()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            pattern = tuple((size == 1, size in first, size in second) for size in leaf.shape)
            needs_grad = graphs and leaf.requires_grad
            yield leaf.dtype, needs_grad, tuple(leaf.shape) if sizes else pattern
        else:
            known = (values and isinstance(leaf, VALUES)) or (isinstance(leaf, (int, float)) and leaf in (0, 1))
            yield (type(leaf), leaf) if known else type(leaf)
