"""Nested batches and outputs: lists their tensors in order, and rebuilds the same nest with other leaves.

Knows lists, tuples, named tuples, dictionaries and their subclasses, and dataclasses. Everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch


def leaves(value: Any) -> list[Any]:
    """All leaves, depth first."""
    found: list[Any] = []
    replace(value, lambda leaf: found.append(leaf) or leaf)  # type: ignore[func-returns-value]
    return found


def replace(value: Any, put: Callable[[Any], Any]) -> Any:
    """The same nest with `put(leaf)` in the place of each leaf, visited in the order of `leaves`."""
    if isinstance(value, torch.Tensor):  # first, because most values are tensors and the checks below are slow
        return put(value)
    if isinstance(value, tuple):
        items = [replace(item, put) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else _same_type(value, items)
    if isinstance(value, list):
        return _same_type(value, [replace(item, put) for item in value])
    if isinstance(value, Mapping):
        return with_items(value, {key: replace(item, put) for key, item in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            # object.__setattr__ also works on a frozen dataclass, as its own constructor does.
            object.__setattr__(changed, field.name, replace(getattr(value, field.name), put))
        return changed
    return put(value)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor with at least one dimension, in the order of `leaves`; stops there."""
    if isinstance(value, torch.Tensor):
        return value if value.dim() else None
    inner: Iterable[Any] = ()
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = (getattr(value, field.name) for field in dataclasses.fields(value))
    for item in inner:
        if (tensor := first_tensor(item)) is not None:
            return tensor
    return None


def rebuild(value: Any, new_leaves: Iterator[Any]) -> Any:
    """The same nest with its leaves taken from `new_leaves`, in order."""
    return replace(value, lambda _: next(new_leaves))


def structure(value: Any) -> Hashable:
    """A key of the nest's structure: equal for two values that differ only in their leaves."""
    if isinstance(value, torch.Tensor):
        return "leaf"
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(structure(item) for item in value))
    if isinstance(value, Mapping):
        return (type(value).__name__, *((str(key), structure(item)) for key, item in value.items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (type(value).__name__, *((f.name, structure(getattr(value, f.name))) for f in fields))
    return "leaf"


def paths(value: Any, at: str = "") -> list[str]:
    """A name for each leaf, as a person would write it: `[0]`, `['mask']`, `.logits`."""
    if isinstance(value, (tuple, list)):
        return [path for i, item in enumerate(value) for path in paths(item, f"{at}[{i}]")]
    if isinstance(value, Mapping):
        return [path for key, item in value.items() for path in paths(item, f"{at}[{key!r}]")]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [p for f in dataclasses.fields(value) for p in paths(getattr(value, f.name), f"{at}.{f.name}")]
    return [at]


def _same_type(value: Any, items: list[Any]) -> Any:
    return items if type(value) is list else type(value)(items)


def with_items(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type as `value`, holding `items`."""
    if type(value) is dict:
        return items
    if not isinstance(value, MutableMapping):
        return type(value)(items)  # type: ignore[call-arg]
    changed = copy.copy(value)
    for key, item in items.items():
        changed[key] = item
    return changed
