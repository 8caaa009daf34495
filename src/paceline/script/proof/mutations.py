"""Changes that a call makes to the containers among its arguments: `batch["logits"] = …`, `batch.pop("labels")`.

A sliced call gets containers of its own, which hold own rows. What it changes in them is treated like its output: the
proof compares it, the workers combine it, and it is then done to the script's own containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch

from paceline.script import tree


class Told(NamedTuple):
    """The output of a call, and what it did to its arguments' containers: number of a container → its new items."""

    output: Any
    changes: dict[str, Any]


class Mark(str):
    """Stands for a container among the arguments, or for an item that a container had before. A text, so that the proof
    compares marks as it compares texts."""

    __slots__ = ()


class Containers:
    """The lists, dictionaries and objects among the arguments of a call, in order, as they are before the call."""

    def __init__(self, given: Any) -> None:
        args, kwargs = given
        seen: set[int] = set()
        found = (container for value in (*args, *kwargs.values()) for container in _containers(value, seen))
        self._held = [(container, _items(container)) for container in found]

    def told(self, output: Any) -> Any:
        """After the call: its output, as `Told` if the call has changed a container or returns one."""
        if not self._held:
            return output
        numbers = {id(container): number for number, (container, _) in enumerate(self._held)}
        marked = _marked(output, numbers)
        changes: dict[str, Any] = {}
        for number, (container, before) in enumerate(self._held):
            now = _items(container)
            if list(now) != list(before) or any(now[key] is not before[key] for key in now):
                changes[str(number)] = {key: _marked(item, numbers, _marks(before)) for key, item in now.items()}
        return Told(marked, changes) if changes or marked is not output else output

    def adopt(self, told: Told) -> Any:
        """Does to these containers, the script's own, what the call has done to its own ones; returns the output."""
        for number, items in told.changes.items():
            container, before = self._held[int(number)]
            _put(container, {key: self._unmarked(item, before) for key, item in items.items()}, before)
        return self._unmarked(told.output, {})

    def _unmarked(self, value: Any, before: dict[Any, Any]) -> Any:
        if isinstance(value, Mark):
            kind, number = value.split()
            return self._held[int(number)][0] if kind == "container" else list(before.values())[int(number)]
        if type(value) in (tuple, list):
            return type(value)(self._unmarked(item, before) for item in value)
        if type(value) is dict:
            return {key: self._unmarked(item, before) for key, item in value.items()}
        return value


def _marks(before: dict[Any, Any]) -> dict[int, Mark]:
    """A mark for each item; not for numbers and texts, of which equal ones may be one object by chance."""
    return {id(v): Mark(f"item {i}") for i, v in enumerate(before.values()) if type(v) not in tree.PLAIN}


def _marked(value: Any, numbers: dict[int, int], items: dict[int, Mark] | None = None) -> Any:
    """The value with marks in the place of the arguments' containers and of these items; itself if it has none."""
    if items and id(value) in items:
        return items[id(value)]
    if id(value) in numbers:
        return Mark(f"container {numbers[id(value)]}")
    if type(value) in (tuple, list):
        inner = [_marked(item, numbers, items) for item in value]
        return type(value)(inner) if any(a is not b for a, b in zip(inner, value, strict=True)) else value
    if type(value) is dict:
        found = {key: _marked(item, numbers, items) for key, item in value.items()}
        return found if any(found[key] is not value[key] for key in value) else value
    return value


def _containers(value: Any, seen: set[int]) -> Iterator[Any]:
    """The containers that `tree.replace` makes anew and that a call can change, outermost first."""
    if isinstance(value, torch.Tensor):
        return
    inner: Iterable[Any] | None = None
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, Mapping):
        inner = list(value.values())
    elif id(value) not in seen and (held := tree.attributes(value)) is not None:
        seen.add(id(value))
        inner = list(held.values())
    if inner is None:
        return
    if not isinstance(value, tuple) and (isinstance(value, MutableMapping) or not isinstance(value, Mapping)):
        yield value
    for item in inner:
        yield from _containers(item, seen)


def _items(container: Any) -> dict[Any, Any]:
    if isinstance(container, list):
        return dict(enumerate(container))
    if isinstance(container, Mapping):
        return dict(container.items())
    return dict(tree.attributes(container) or {}) | getattr(container, "__dict__", {})


def _put(container: Any, items: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Gives the container these items, in place."""
    if isinstance(container, list):
        container[:] = items.values()
        return
    is_mapping = isinstance(container, MutableMapping)
    for key in [key for key in before if key not in items]:
        container.pop(key) if is_mapping else object.__delattr__(container, key)
    for key, item in items.items():
        if key not in before or before[key] is not item:
            container.__setitem__(key, item) if is_mapping else object.__setattr__(container, key, item)
