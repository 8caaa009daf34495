"""Nested batches and outputs: lists their tensors in order, and rebuilds the same nest with other leaves.

Knows lists, tuples, named tuples, dictionaries and their subclasses, dataclasses, and other objects that hold tensors
in their attributes, or may come to hold some (a cache of keys and values, a distribution). Everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

MANY = 64  # items in an object without tensors, and in its lists: a larger one is a leaf
DEPTH = 4  # of objects in objects: a cache, its layers, their tensors
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def leaves(value: Any) -> list[Any]:
    """All leaves, depth first."""
    found: list[Any] = []
    replace(value, lambda leaf: found.append(leaf) or leaf)  # type: ignore[func-returns-value]
    return found


def replace(value: Any, put: Callable[[Any], Any], seen: dict[int, Any] | None = None) -> Any:
    """The same nest with `put(leaf)` in the place of each leaf, visited in the order of `leaves`. `seen`: the objects
    that were visited, and their new selves; each is visited once, also if others refer to it."""
    if isinstance(value, torch.Tensor):  # first, because most values are tensors and the checks below are slow
        return put(value)
    seen = {} if seen is None else seen
    if isinstance(value, tuple):
        return with_entries(value, [replace(item, put, seen) for item in value])
    if isinstance(value, list):
        return _same_type(value, [replace(item, put, seen) for item in value])
    if isinstance(value, Mapping):
        return with_items(value, {key: replace(item, put, seen) for key, item in value.items()})
    if (held := attributes(value)) is not None:
        if id(value) in seen:
            return seen[id(value)]
        changed = seen[id(value)] = copy.copy(value)
        for name, item in held.items():
            # object.__setattr__ also works on a frozen dataclass, as its own constructor does.
            object.__setattr__(changed, name, replace(item, put, seen))
        return changed
    return put(value)


def first_tensor(value: Any, seen: set[int] | None = None) -> torch.Tensor | None:
    """The first tensor with at least one dimension, in the order of `leaves`; stops there."""
    if isinstance(value, torch.Tensor):
        return value if value.dim() else None
    inner: Iterable[Any] = ()
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif (held := attributes(value)) is not None:
        seen = set() if seen is None else seen
        inner = () if id(value) in seen else held.values()
        seen.add(id(value))
    for item in inner:
        if (tensor := first_tensor(item, seen)) is not None:
            return tensor
    return None


def is_on_meta(value: Any) -> bool:
    """Whether the first tensor is on the meta device, and has a shape and no numbers."""
    first = first_tensor(value)
    return first is not None and first.device.type == "meta"  # `is_meta` would gather own rows


def rebuild(value: Any, new_leaves: Iterator[Any]) -> Any:
    """The same nest with its leaves taken from `new_leaves`, in order."""
    return replace(value, lambda _: next(new_leaves))


def structure(value: Any, seen: set[int] | None = None) -> Hashable:
    """A key of the nest's structure: equal for two values that differ only in their leaves."""
    if isinstance(value, torch.Tensor):
        return "leaf"
    seen = set() if seen is None else seen
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(structure(item, seen) for item in value))
    if isinstance(value, Mapping):
        return (type(value).__name__, *((str(key), structure(item, seen)) for key, item in value.items()))
    if (held := attributes(value)) is not None:
        if id(value) in seen:
            return "seen"
        seen.add(id(value))
        return (type(value).__name__, *((name, structure(item, seen)) for name, item in held.items()))
    return "leaf"


def paths(value: Any, at: str = "", seen: set[int] | None = None) -> list[str]:
    """A name for each leaf, as a person would write it: `[0]`, `['mask']`, `.logits`."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [at]
    if isinstance(value, (tuple, list)):
        return [path for i, item in enumerate(value) for path in paths(item, f"{at}[{i}]", seen)]
    if isinstance(value, Mapping):
        return [path for key, item in value.items() for path in paths(item, f"{at}[{key!r}]", seen)]
    if (held := attributes(value)) is not None:
        if id(value) in seen:
            return []
        seen.add(id(value))
        return [path for name, item in held.items() for path in paths(item, f"{at}.{name}", seen)]
    return [at]


def attributes(value: Any) -> dict[str, Any] | None:
    """What a dataclass, or another object that holds tensors, holds; None for a leaf."""
    if type(value) in PLAIN or isinstance(value, (type, nn.Module)) or _is_function(value):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, dict) and (_holds_tensors(held, DEPTH) or _may_hold_tensors(value, DEPTH)) else None


def _may_hold_tensors(value: Any, depth: int) -> bool:
    """Whether this is an object that a call may fill with tensors: an empty cache of keys and values. It holds only
    plain values, and containers and such objects of these, and copying it is an ordinary copy."""
    kind: Any = type(value)
    if kind in PLAIN or isinstance(value, type):
        return True
    if not depth or isinstance(value, (nn.Module, enum.Enum)) or callable(value):
        return False
    if kind in (tuple, list, dict):
        inner = value.values() if kind is dict else value
        return len(value) <= MANY and all(_may_hold_tensors(item, depth - 1) for item in inner)
    held = getattr(value, "__dict__", None)
    if (
        not isinstance(held, dict)
        or not 0 < len(held) <= MANY
        or kind.__module__.split(".")[0] in sys.stdlib_module_names
    ):
        return False
    ordinary = kind.__reduce_ex__ is object.__reduce_ex__ and not hasattr(kind, "__copy__")
    return ordinary and all(_may_hold_tensors(item, depth - 1) for item in held.values())


def _is_function(value: Any) -> bool:
    """Whether a value is there to be called. A batch of graphs can be called, too, and has items."""
    return callable(value) and not hasattr(type(value), "__getitem__")


def _holds_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if not depth or type(value) in PLAIN or isinstance(value, (type, nn.Module)) or _is_function(value):
        return False
    if isinstance(value, (tuple, list)):
        return any(_holds_tensors(item, depth - 1) for item in value)
    held = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    return isinstance(held, Mapping) and any(_holds_tensors(item, depth - 1) for item in held.values())


def _same_type(value: Any, items: list[Any]) -> Any:
    return items if type(value) is list else type(value)(items)


def with_entries(value: tuple[Any, ...], items: list[Any]) -> Any:
    """A tuple of the same type as `value`, holding `items`."""
    return type(value)(*items) if hasattr(value, "_fields") else _same_type(value, items)


def with_items(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type as `value`, holding `items`."""
    if type(value) is dict:
        return items
    if not isinstance(value, MutableMapping):
        return type(value)(items)  # type: ignore[call-arg]
    changed = copy.copy(value)
    sized = getattr(value, "batch_size", None)
    if isinstance(sized, torch.Size):  # a TensorDict: its items begin with these sizes, which may be others now
        first = next((item for item in items.values() if len(getattr(item, "shape", ())) >= len(sized)), None)
        changed = value.empty()  # type: ignore[attr-defined]
        changed.batch_size = torch.Size(())
        sized = sized if first is None else first.shape[: len(sized)]
    for key, item in items.items():
        changed[key] = item
    if sized is not None and hasattr(changed, "batch_size"):
        changed.batch_size = sized
    return changed
