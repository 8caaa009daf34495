"""What makes two modules alike, so that a proof of one is one of the other: the layers of a model that is computed in
parts need one proof, not one each.

Alike are modules of the same classes with equal attributes, whose parameters and buffers have the same shapes. A
module that holds anything else (an object, a tensor, a function with variables of its own, a hook) is like no other.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

from paceline.script.proof.backward_hooks import KINDS, OF_FORWARD
from paceline.script.proof.side_effects import OWN
from paceline.torch_private import is_compiled

PLAIN: tuple[Any, ...] = (
    *(bool, int, float, complex, str, bytes, type(None), enum.Enum, type),
    *(torch.dtype, torch.device, torch.Size),
)
DEPTH = 3  # of containers in each other
MANY = 200  # values in one of them


class _UnlikeError(Exception):
    """The module has what cannot be compared."""


def likeness(module: nn.Module) -> Hashable:
    """Equal for modules that are alike; None for one that is like no other."""
    try:
        return tuple(_of_modules(module))
    except _UnlikeError:
        return None


def _of_modules(module: nn.Module) -> Iterator[Hashable]:
    places: dict[int, int] = {}  # of tensors, which modules may share
    for path, m in module.named_modules(remove_duplicate=False):
        if is_compiled(m) or isinstance(m, torch.jit.ScriptModule) or any(getattr(m, k) for k in (*KINDS, *OF_FORWARD)):
            raise _UnlikeError
        yield path, type(m)
        for name, held in (*m._parameters.items(), *m._buffers.items()):
            if held is not None and type(held) not in (nn.Parameter, torch.Tensor):
                raise _UnlikeError
            place = places.setdefault(id(held), len(places))
            yield name, place, held if held is None else _told_tensor(held)
        yield from ((name, _told(value, DEPTH)) for name, value in vars(m).items() if name not in OWN)


def _told_tensor(held: torch.Tensor) -> Hashable:
    return type(held), held.shape, held.stride(), held.dtype, held.device, held.requires_grad


def _told(value: Any, depth: int) -> Hashable:
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (type, types.ModuleType)):
        return value
    if isinstance(value, types.FunctionType) and value.__closure__ is None and not vars(value):
        return value
    if not depth or type(value) not in (list, tuple, dict) or len(value) > MANY:
        raise _UnlikeError
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return type(value), *((_told(key, depth - 1), _told(inner, depth - 1)) for key, inner in inside)
