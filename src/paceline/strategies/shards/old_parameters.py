"""The parameters that a script got hold of before they were sharded: they lead to the sharded ones from then on.

FSDP2 puts new objects in a model's place of the old parameters. A list that the script made before the first call
(`params = list(model.parameters())`) still holds the old ones: each use of an old one is a use of the new one.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.script import tree
from paceline.strategies.mirrored import leaves_of
from paceline.torch_private import OwnTensor, no_torch_function, plain_grad


class OldParameter(OwnTensor):
    """An object that was a parameter. Its memory is freed."""

    _now: DTensor
    _is_param = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now = tree.replace((args, kwargs or {}), lambda leaf: leaf._now if isinstance(leaf, OldParameter) else leaf)
        return func(*now[0], **now[1])

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self._now)

    def __hash__(self) -> int:
        return id(self)


def lead(old: Any, new: DTensor, *, free: bool) -> None:
    """From now on the old object leads to the new one. `free`: no graph needs its memory."""
    grad, old.grad = old.grad, None
    if grad is not None:
        new.grad = grad
    if free:
        # One number in the whole shape: a function that is being called may give it a gradient of that shape yet.
        old.data = torch.zeros((), dtype=old.dtype, device=old.device).expand(old.shape)
    old.__class__ = OldParameter
    old._now = new


def release(old: Any) -> None:
    """Frees the memory of an old object that a graph has needed."""
    with no_torch_function():
        old.untyped_storage().resize_(0)


def in_graphs() -> set[int]:
    """The ids of leaves in graphs that exist already: terms that the script computed before the model's first call."""
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return {id(leaf) for leaf, _ in leaves_of([t for t in found if t.grad_fn is not None])} if found else set()


def late_gradient(old: Any) -> torch.Tensor | None:
    """The gradient that a backward has given to the old object: of a term that was computed before the model's first
    call. It is whole, and is given once."""
    with no_torch_function():
        grad: torch.Tensor | None = plain_grad.__get__(old)
        if grad is not None:
            plain_grad.__set__(old, None)
    return grad
