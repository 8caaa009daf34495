"""Python values that a call may change besides the attributes of its modules: variables of the script, what hooks keep,
attributes of classes. They are kept before a trial and put back after it; and compared between trials, since what a
call leaves must not depend on the number of rows."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.script.proof.reach import Holder, Reach, get, holder_of, is_object, items, put, variables
from paceline.script.proof.reach import attributes as of_modules
from paceline.script.slicing import side_effects

PLAIN = (str, int, float, bool, bytes, type(None), complex)
DEPTH = 5
MANY = 2000  # items of a container that are looked at
LARGE = 1 << 20  # bytes of an array that is kept
ITERATORS: tuple[type, ...] = (itertools.count, itertools.cycle, type(iter([])), type(iter(range(0))))
LOOKED_AT: tuple[type, ...] = (*PLAIN, *ITERATORS, list, tuple, dict, set, deque, np.ndarray, torch.Tensor)


def keep(module: nn.Module, reach: Reach, *, attributes: bool = False) -> Callable[[], None]:
    """Returns a function that puts the present values back. `attributes`: also what containers in attributes of the
    module hold."""
    found: dict[int, tuple[Any, Any]] = {}
    kept = [(holder, name, value, _copied(value)) for _, holder, name, value in _variables(module, reach)]
    for _, _, value, _ in kept:
        _keep(value, found, DEPTH)
    for function in reach.functions:
        _keep([*(function.__defaults__ or ()), vars(function)], found, DEPTH)
    for _, _, _, value in of_modules(module) if attributes else ():
        _keep(value, found, DEPTH)

    def put_back() -> None:
        for container, before in found.values():
            _put(container, before)
        for holder, name, value, as_it_was in kept:
            if isinstance(value, ITERATORS):
                if value.__reduce__() != as_it_was.__reduce__():
                    put(holder, name, as_it_was)
            elif get(holder, name) is not value and (isinstance(value, PLAIN) or not isinstance(holder, dict)):
                put(holder, name, value)

    return put_back


def look(module: nn.Module, reach: Reach) -> tuple[dict[Any, Any], dict[Any, torch.Tensor]]:
    """In reach of the module, by where they are: all plain values (of containers also their sizes), and all tensors
    that are no parameters and no buffers."""
    values: dict[Any, Any] = {}
    tensors: dict[Any, torch.Tensor] = {}
    seen: set[int] = set()
    for path, m in module.named_modules():
        values[path, "training"] = m.training
    for path, _, name, value in of_modules(module):
        _list((path, name), value, values, tensors, seen, DEPTH)
    for path, _, name, value in _variables(module, reach):
        _list((path, name), value, values, tensors, seen, DEPTH)
    return values, tensors


def _variables(module: nn.Module, reach: Reach) -> Iterator[tuple[str | None, Holder, str, Any]]:
    found = variables(module, reach)
    return (one for one in found if isinstance(one[-1], LOOKED_AT) or is_object(one[-1]))


def _copied(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, ITERATORS) else None


def changes(before: dict[Any, Any], after: dict[Any, Any]) -> dict[Any, Any]:
    """The values that are new or others than before."""
    gone = {where: None for where in before if where not in after}
    return gone | {w: v for w, v in after.items() if w not in before or not _is_equal(v, before[w])}


def differing(some: list[dict[Any, Any]]) -> str:
    """The name of a change that is not the same in all; empty if there is none."""
    first, *others = some
    for other in others:
        for where in {**first, **other}:
            if where not in first or where not in other or not _is_equal(first[where], other[where]):
                return name_of(where)
    return ""


def _is_equal(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def name_of(where: Any) -> str:
    """A place, for a person."""
    path, name, *_ = where
    return f"{path}.{name}".lstrip(".") if path else str(name)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from list(value.items())[:MANY]
    elif isinstance(value, (list, tuple, deque)):
        yield from enumerate(list(value)[-MANY:])
    elif is_object(value):
        yield from items(holder_of(value))


def _keep(held: Any, found: dict[int, tuple[Any, Any]], depth: int) -> None:
    if not depth or id(held) in found or isinstance(held, (*PLAIN, torch.Tensor)):
        return
    if isinstance(held, np.ndarray) and held.nbytes <= LARGE:
        found[id(held)] = (held, held.copy())
    elif isinstance(held, (list, dict, set, deque)) and len(held) <= side_effects.MOST:
        found[id(held)] = (held, _content(held))
    if is_object(held):  # also a dictionary of the script's own class
        holder = holder_of(held)
        found[id(holder)] = (holder, dict(items(holder)))
        for _, inner in items(holder):
            _keep(inner, found, depth - 1)
    for _, inner in _inside(held):
        _keep(inner, found, depth - 1)


def _content(container: Any) -> Any:
    """A plain copy, whatever the class."""
    kind = next(kind for kind in (dict, set, list, deque) if isinstance(container, kind))
    return dict(dict.items(container)) if kind is dict else kind(container)


def _put(container: Any, before: Any) -> None:
    if isinstance(container, np.ndarray):
        if not np.array_equal(container, before):
            container[...] = before
    elif isinstance(container, (list, deque)):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container.clear()
            container.extend(before)
    elif isinstance(container, set):
        if container != before:
            container.clear()
            container.update(before)
    elif not _has_same(dict(items(container)), before):
        if isinstance(container, dict):
            container.clear()
        for name, value in before.items():
            put(container, name, value)


def _has_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return len(one) == len(other) and all(key in one and one[key] is value for key, value in other.items())


def _list(
    where: Any, value: Any, values: dict[Any, Any], tensors: dict[Any, torch.Tensor], seen: set[int], depth: int
) -> None:
    if type(value) in PLAIN:
        values[where] = value
        return
    if type(value) in (torch.Tensor, nn.Parameter):  # no sharded output, which would be gathered
        tensors[where] = value
    if isinstance(value, torch.Tensor) or not depth or id(value) in seen:
        return
    if isinstance(value, (np.ndarray, np.generic)):
        values[where] = value.tobytes() if value.nbytes <= LARGE and value.dtype != object else value.shape
        return
    if isinstance(value, (dict, list, tuple, set, deque)):
        seen.add(id(value))
        values[(*where, "len")] = len(value)
        if isinstance(value, set):
            return
    for key, inner in _inside(value):
        seen.add(id(value))
        told = key if type(key) in PLAIN else type(key).__name__
        _list((*where, told), inner, values, tensors, seen, depth - 1)
