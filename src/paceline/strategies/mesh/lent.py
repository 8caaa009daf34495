"""Copies of split tensors that the script may write into: what it writes is written back to the parts.

A function that is not known to work in parts gets the whole tensor, gathered. If it returns a view of this copy
(`weight[0]`, `weight.T`, `weight.numpy()`), the script may write through the view, as it may in one process. So copies
of which there are views are remembered, and before the tensor is used again, changed copies are brought to the parts.

Every worker calls the same functions in the same order, so that all remember the same copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.spread.write_back import LentCopies, state_of_part
from paceline.strategies.mesh import operand_check
from paceline.strategies.mesh.sharded_parameter import ShardedParameter, is_sharded, split_like, whole


def gathered(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function returns for whole tensors in place of the split ones."""
    copies: list[tuple[Any, torch.Tensor]] = []

    def put(leaf: Any) -> Any:
        if not is_sharded(leaf):
            return leaf
        full = next((full for target, full in copies if target is leaf), None)
        if full is None:
            full = _lent.known(leaf, whole(leaf))
            copies.append((leaf, full))
        return full

    given, named = tree.replace((args, kwargs), put)
    return _lent.call(f, given, named, copies)


def write_back() -> None:
    """What the script has written into copies is brought to the parts. Every worker calls it; nothing is sent."""
    _lent.write_back()


def write_back_arrays() -> None:
    """As `write_back`, also through NumPy's arrays, whose numbers must be read for that."""
    _lent.write_back(arrays=True)


@torch.no_grad()
def _keep(target: Any, full: torch.Tensor) -> None:
    if not isinstance(target, ShardedParameter) and target.requires_grad:
        raise ScriptError(
            "The script changes a view of a tensor in place that has a graph and that the strategy mesh has split over "
            "the workers.",
            advice="Compute a new tensor instead (torch.where, torch.cat), or use --strategy mirrored.",
        )
    operand_check.note(full)
    shard = target.shard if isinstance(target, ShardedParameter) else target
    shard.to_local().copy_(split_like(full, shard).to_local())


def _state_of(target: Any) -> tuple[int, ...]:
    with torch.no_grad():
        local = (target.shard if isinstance(target, ShardedParameter) else target).to_local()
    return state_of_part(local)


_lent = LentCopies(_keep, _state_of)
