"""Tensors that are handed out before they are computed.

A step that runs as one graph is launched at its backward. Until then the script holds promises: they know their shape,
and note what the script does with them. Whatever the graph does not do (reading a value, an unknown function) makes
them come true at once, without the graph. A promise has no memory of its own: code that goes past torch's functions
fails, and never reads an old number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Protocol

import torch
from torch.autograd.function import Function

from paceline.errors import ScriptError
from paceline.mods.graphs.graphed_call import WITHOUT
from paceline.torch_private import OwnTensor, make_wrapper_subclass, no_torch_function

_ATTRIBUTES = ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout", "is_sparse", "is_meta")
_METHODS = (
    *("size", "dim", "numel", "nelement", "stride", "is_floating_point", "is_complex", "is_contiguous", "element_size"),
    *("__len__", "get_device", "storage_offset"),
)
# What a promise answers without being true.
ABOUT = {
    *(getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES),
    *(getattr(torch.Tensor, name) for name in _METHODS),
    *(torch.numel, torch.is_floating_point, torch.is_complex),
}
# Functions whose results have no gradient, and functions whose results have one: both share no memory with their
# arguments, so that they may read a graph's memory itself.
READING = {
    *("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "argmax", "argmin", "argsort", "allclose"),
    *("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("isnan", "isinf", "isfinite", "any", "all"),
}
FRESH = {
    *("sum", "mean", "max", "min", "amax", "amin", "norm", "std", "var", "sort", "topk"),
    *("softmax", "log_softmax", "sigmoid", "exp", "log", "cross_entropy", "nll_loss", "mse_loss"),
}


class Use(Enum):
    """What a value is for."""

    READ = "a function in READING"
    COMPUTE = "a function in FRESH"
    DETACH = "a tensor without gradient on the same memory"
    KEEP = "anything else"

    @classmethod
    def of(cls, func: Callable[..., Any], kwargs: dict[str, Any]) -> Use:
        name = getattr(func, "__name__", "")
        if "out" in kwargs:
            return Use.KEEP
        if func is torch.Tensor.detach:
            return Use.DETACH
        return Use.READ if name in READING else Use.COMPUTE if name in FRESH else Use.KEEP


class Holder(Protocol):
    """The step that promises belong to."""

    def do(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a function of torch that was given promises of this step."""

    def come_true(self) -> None:
        """Computes what the promises stand for, unless that is done."""

    def value_of(self, promise: Promise, use: Use) -> torch.Tensor:
        """The value of a promise of this step, which has come true."""

    def go_back(self, promise: Promise) -> bool:
        """A plain backward from this promise. Returns whether it is done; otherwise autograd must do it."""


class Promise(OwnTensor):
    """One result of a step. `memory`: its numbers, once they lie outside the memory of a graph; `own`: these with a
    gradient function."""

    holder: Holder
    place: int
    own: torch.Tensor | None
    memory: torch.Tensor | None

    @classmethod
    def of(cls, holder: Holder, place: int, like: torch.Tensor, *, learns: bool) -> Promise:
        promise: Promise = make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device, requires_grad=learns
        )
        promise.holder, promise.place, promise.own, promise.memory = holder, place, None, None
        return promise

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ABOUT:
            with no_torch_function():
                return func(*args, **kwargs)
        if func is torch.Tensor.backward:
            return _go_back(*args, **kwargs)
        return newest((args, kwargs)).do(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise ScriptError(
            f"--mod cuda_graphs: {func} reads an output of the model past torch's functions.", advice=WITHOUT
        )


def _go_back(
    loss: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Tensor.backward, to the seam of every backward (`cuda_graphs`)."""
    torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)


def found_in(value: Any) -> list[Promise]:
    """The promises in a nest of lists, tuples and dictionaries. Called for every function, so it is fast."""
    found: list[Promise] = []
    left = [value]
    while left:
        kind = type(one := left.pop())
        if kind is Promise:
            found.append(one)
        elif kind is tuple or kind is list:
            left += one
        elif kind is dict:
            left += one.values()
    return found


def newest(value: Any) -> Holder:
    """The step that the promises in a nest belong to; promises of other steps come true."""
    promises = found_in(value)
    holder = promises[0].holder
    for promise in promises:
        if promise.holder is not holder:
            promise.holder.come_true()
    return holder


def real(value: Any, use: Use = Use.KEEP) -> Any:
    """The nest with tensors in place of promises, which come true."""

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, Promise):
            return leaf
        leaf.holder.come_true()
        return leaf.holder.value_of(leaf, use)

    return mapped(value, put)


def call_for_real(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    args, kwargs = real((args, kwargs), Use.of(func, kwargs))
    return func(*args, **kwargs)


def spent(value: torch.Tensor, name: str) -> torch.Tensor:
    """The value of a result whose backward has run: it still has a gradient function, which can run no more."""
    kind = _kinds.get(name)
    if kind is None:
        kind = _kinds[name] = type(name, (_Spent,), {})
        kind._backward_cls.__name__ = name
    if value.device not in _anchors:
        _anchors[value.device] = torch.zeros((), device=value.device, requires_grad=True)
    with torch.enable_grad():
        out: torch.Tensor = kind.apply(_anchors[value.device], value)
    return out


class _Spent(Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors after they have "
            "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
            "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or if "
            "you need to access saved tensors after calling backward."
        )


_kinds: dict[str, type[_Spent]] = {}
_anchors: dict[torch.device, torch.Tensor] = {}


# -- the tape: what a script does between a model's call and its backward ---------------------------------------------
# Two steps with equal tapes can run as one graph (`whole_step`). A tape holds no values: results are named by their
# place (first the outputs of the model, then the results of each function), other tensors by their shape.


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
