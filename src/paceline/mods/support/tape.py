"""What a script does between a model's call and its backward: the functions of torch that it calls on the outputs.

Two steps with equal tapes can run as one graph (`whole_step`). A tape holds no values: results are named by their place
(first the outputs of the model, then the results of each function), other tensors by their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

CONSTANTS = (
    *(bool, int, float, complex, str, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)

IN_PLACE = {
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift", "imatmul"),
}


class Unfit(Exception):
    """This cannot be part of a tape; the text says why."""


@dataclass(frozen=True)
class Result:
    """An earlier result."""

    place: int


@dataclass(frozen=True)
class Given:
    """A tensor that is not a result: labels, a mask, a scale."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Given:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def blank(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).zero_()


@dataclass(frozen=True)
class Constant:
    """Anything else. The type counts: 1, True and 1.0 are equal in Python."""

    kind: type
    value: Any


@dataclass(frozen=True)
class State:
    """The modes under which a function is called."""

    grad: bool
    autocast: bool
    dtype: torch.dtype

    @classmethod
    def now(cls, device: str) -> State:
        return cls(torch.is_grad_enabled(), torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))

    @contextmanager
    def on(self, device: str) -> Iterator[None]:
        with (
            torch.set_grad_enabled(self.grad),
            torch.autocast(device, self.dtype, enabled=self.autocast, cache_enabled=False),
        ):
            yield


@dataclass(frozen=True)
class Entry:
    """One function. `asked`: its arguments, with `Result` and `Given` in place of tensors."""

    func: Callable[..., Any]
    asked: Any
    state: State

    def givens(self) -> list[Given]:
        found: list[Given] = []
        mapped(self.asked, lambda leaf: found.append(leaf) if isinstance(leaf, Given) else None)
        return found

    def call(self, results: list[torch.Tensor], givens: list[torch.Tensor]) -> Any:
        left = iter(givens)

        def real(leaf: Any) -> Any:
            if isinstance(leaf, Result):
                return results[leaf.place]
            return next(left) if isinstance(leaf, Given) else leaf.value

        args, kwargs = mapped(self.asked, real)
        with self.state.on(results[0].device.type):
            return self.func(*args, **kwargs)


@dataclass
class Tape:
    entries: list[Entry] = field(default_factory=list)
    results: list[Given] = field(default_factory=list)  # of all entries
    loss: int = -1  # the place of the result whose backward ends the tape


def mapped(value: Any, put: Callable[[Any], Any]) -> Any:
    """The same nest of lists, tuples, dictionaries and slices, with `put(leaf)` in place of each leaf."""
    if isinstance(value, (tuple, list)):
        items = [mapped(item, put) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: mapped(item, put) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(mapped(value.start, put), mapped(value.stop, put), mapped(value.step, put))
    return put(value)


def entry_of(
    func: Callable[..., Any], args: Any, kwargs: Any, place_of: Callable[[Any], int | None]
) -> tuple[Entry, list[torch.Tensor]]:
    """The entry of a call, and its given tensors. `place_of` gives the place of a result, None for another tensor.
    Raises Unfit."""
    name = getattr(func, "__name__", "")
    if torch.is_inference_mode_enabled():
        raise Unfit("the script is in inference mode.")
    if changes_in_place(name) or "out" in kwargs:
        raise Unfit(f"{name} changes a tensor in place before backward.")
    devices: set[torch.device] = set()
    givens: list[torch.Tensor] = []

    def look(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            devices.add(leaf.device)
            place = place_of(leaf)
            if place is not None:
                return Result(place)
            if leaf.requires_grad:
                raise Unfit(f"{name} mixes an output of the model with another tensor that has a gradient.")
            givens.append(leaf)
            return Given.like(leaf)
        if not isinstance(leaf, CONSTANTS):
            raise Unfit(f"{name} is called with {type(leaf).__name__}.")
        return Constant(type(leaf), leaf)

    asked = mapped((tuple(args), kwargs), look)
    if len(devices) != 1:
        raise Unfit(f"{name} is called with tensors of several devices.")
    return Entry(func, asked, State.now(next(iter(devices)).type)), givens


def changes_in_place(name: str) -> bool:
    inner = name.removeprefix("__").removesuffix("__")
    dunder = name != inner
    return (name.endswith("_") and not dunder) or name == "__setitem__" or (dunder and inner in IN_PLACE)
