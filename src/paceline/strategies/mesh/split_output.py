"""A model's output that stays split over the axis model after the call: the logits of a split vocabulary.

A loss or an argmax over the classes is computed in parts (`class_losses`), so that no worker ever holds all logits.
Reshapes, conversions and a division by a temperature stay split. Before any other function the logits are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.script import memory, tree
from paceline.script.rows.origins import pass_note
from paceline.script.rows.spread_tensor import SpreadTensor, Step, replayed
from paceline.spread.dtensors import shard_dim, whole_of
from paceline.strategies.mesh import class_losses
from paceline.strategies.mesh.fused_heads import is_fact
from paceline.torch_private import make_wrapper_subclass, no_torch_function

VIEWS = {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "detach", "__getitem__"}
NEW = {"float", "double", "mul", "div", "__mul__", "__rmul__", "__truediv__", "true_divide", "clone"}
LOSSES = {"cross_entropy", "nll_loss", "log_softmax", "argmax"}


class SplitOutput(SpreadTensor):
    """`local` is the DTensor."""

    local: DTensor

    @staticmethod
    def __new__(
        cls: type[SplitOutput], part: DTensor, view_of: SplitOutput | None = None, step: Step | None = None
    ) -> SplitOutput:
        with no_torch_function():
            made: SplitOutput = make_wrapper_subclass(
                cls, part.shape, strides=part.stride(), dtype=part.dtype, device=part.device
            )
        made.local = part
        if view_of is not None and step is not None:
            made.is_view_of(view_of, step)
        return made

    @classmethod
    def in_parts(cls, f: Any, args: Any, kwargs: Any) -> Any:
        if is_fact(f):
            with no_torch_function():
                return f(*args, **kwargs)
        name, me = getattr(f, "__name__", ""), args[0] if args else kwargs.get("input")
        if name == "untyped_storage":
            return me.local.to_local().untyped_storage()
        others = [leaf for leaf in tree.leaves((args[1:], kwargs)) if isinstance(leaf, torch.Tensor)]
        if isinstance(me, SplitOutput) and not any(isinstance(leaf, SplitOutput) and leaf is not me for leaf in others):
            return _in_parts(f, name, me, args, kwargs, others)
        return NotImplemented

    def wholes(self, alive: Sequence[SplitOutput]) -> list[torch.Tensor]:
        first = (self.family or self).local
        base = whole_of(first)
        pass_note(first, base)
        return [replayed(member, base) for member in alive]


def _in_parts(f: Any, name: str, me: SplitOutput, args: Any, kwargs: Any, others: list[torch.Tensor]) -> Any:
    """The function on this worker's part; NotImplemented if it needs the whole tensor."""
    if name in LOSSES:
        args, kwargs = tree.replace((args, kwargs), lambda leaf: leaf.local if leaf is me else leaf)
        loss = class_losses.KNOWN.get(f) or class_losses.KNOWN.get(getattr(f, "__wrapped__", None))
        found = NotImplemented if loss is None else loss(*args, **kwargs)
        return SplitOutput(found) if isinstance(found, DTensor) else found
    if (name not in VIEWS and name not in NEW) or any(other.dim() for other in others) or not args or args[0] is not me:
        return NotImplemented
    rest = args[1:]
    try:
        with no_torch_function():
            found = f(me.local, *rest, **kwargs)
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError) as error:
        if memory.ran_out(error):  # the other workers would not gather
            raise
        return NotImplemented  # torch's own words come from the plain tensor
    dim = shard_dim(found) if isinstance(found, DTensor) else None
    if dim is None or found.to_local().shape[dim] * found.device_mesh.size() != found.shape[dim]:
        return NotImplemented
    return SplitOutput(found, me, lambda whole: f(whole, *rest, **kwargs)) if name in VIEWS else SplitOutput(found)
