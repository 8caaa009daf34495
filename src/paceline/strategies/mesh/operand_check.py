"""What enters split tensors: each worker keeps its part of a value, so that the values themselves must be equal.

`functions` and `mesh` tell this file the numbers and plain tensors that the script puts into split tensors, and
`model_agreement` compares them between the workers of the axis model. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.spread.dtensors import is_sharded

_told: list[Callable[[Any], None]] = []


def connect(note: Callable[[Any], None]) -> None:
    """From now on this function is told."""
    _told[:] = [note]


def note(value: Any) -> None:
    """Numbers and plain tensors, also in lists and dictionaries, are about to enter split tensors."""
    for told in _told:
        told(value)


def note_change(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """A function changes its first argument in place."""
    target = args[0] if args else None
    if isinstance(target, (list, tuple)):
        note((args[1:], kwargs))
    elif is_sharded(target):
        note((args, kwargs))


def note_lists(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """A function of lists: plain tensors stand beside plain ones, and enter split tensors only beside these."""
    first = args[0] if isinstance(args[0], (list, tuple)) else ()  # `_foreach_pow(2.0, tensors)`
    for arg in args:
        if isinstance(arg, (list, tuple)) and len(arg) == len(first):
            note([leaf for leaf, beside in zip(arg, first, strict=True) if is_sharded(beside)])
        else:
            note(arg)
    note({key: value for key, value in kwargs.items() if not isinstance(value, torch.Tensor) or not value.dim()})
