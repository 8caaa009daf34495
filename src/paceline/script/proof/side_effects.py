"""Side effects of a call: tensors and numbers left in attributes of its modules, also as another buffer, in variables
of the script and where hooks keep them, also in lists, tuples and dictionaries (`self.attention`,
`self.stats["accuracy"]`, `self.state = h, c`, `history.append(…)`, `self.average = …`).

A place is a tuple: the path of the module (None: the script; or a name of `kept_by_hooks`), the name, and the keys
below it. A list's items are counted from its end, so that an item appended at each call has the same place each time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from paceline.script import tree
from paceline.script.proof import kept_by_hooks

Place = tuple[Any, ...]
SEQUENCES = (list, deque, tuple)
OWN = frozenset(nn.Module().__dict__)  # attributes that every torch module has
LAST = 16  # items at the end of a list that are compared
PLAIN = (str, int, float, bool, type(None))  # keys of dictionaries that are the same on every worker
NTH = "item:"  # a place has the number of another key (a module)
DEPTH = 3  # levels of nested containers
MANY, MOST = 1000, 100_000  # items: largest dictionary that is compared, largest container that is restored


def look(module: nn.Module) -> dict[Place, tuple[Place, Any]]:
    """All tensors and numbers, by a place that counts from the start of lists: the place and the value."""
    return {
        absolute: (place, value)
        for path, name, held in holdings(module)
        for absolute, place, value in _below((path, name), (path, name), held, DEPTH)
    }


def changed(module: nn.Module, before: dict[Place, tuple[Place, Any]]) -> dict[Place, Any]:
    """The values that are new, or another object than before."""
    now = look(module).items()
    return {place: value for absolute, (place, value) in now if value is not before.get(absolute, (None, before))[1]}


def places_of_tensors(left: dict[Place, Any]) -> tuple[Place, ...]:
    """The places of tensors, in the same order on every worker."""
    return tuple(sorted((place for place, value in left.items() if isinstance(value, torch.Tensor)), key=repr))


def get(module: nn.Module, place: Place) -> Any:
    """The value at a place; None if there is none."""
    held: Any = owner_of(module, place[0]).get(place[1])
    if held is None and is_in_module(place):
        held = module.get_submodule(place[0])._buffers.get(place[1])
    for key in place[2:]:
        try:
            held = held[_key(held, key)]
        except (KeyError, IndexError, TypeError):
            return None
    return held


def put(module: nn.Module, place: Place, value: Any) -> None:
    """Replaces the value at a place."""
    if len(place) > 2:
        held, key = get(module, place[:-1]), place[-1]
        if isinstance(held, tuple):
            items = list(held)
            items[key] = value
            put(module, place[:-1], tree.with_entries(held, items))
        else:
            held[_key(held, key)] = value
    elif not is_in_module(place):
        owner_of(module, place[0])[place[1]] = value
    else:
        setattr(module.get_submodule(place[0]), place[1], value)


def places_beside(module: nn.Module, place: Place) -> list[Place]:
    """The other places in the container of a place."""
    held = get(module, place[:-1])
    keys = list(held) if isinstance(held, dict) else range(-len(held), 0) if isinstance(held, SEQUENCES) else ()
    return [(*place[:-1], key) for key in keys if key != place[-1]]


def owner_of(module: nn.Module, path: str | None) -> dict[str, Any]:
    """The namespace that holds the name of a place."""
    if path is None:
        return vars(sys.modules["__main__"])
    if path.startswith(kept_by_hooks.MARK):
        return kept_by_hooks.find(module, path)
    return module.get_submodule(path).__dict__


def is_in_module(place: Place) -> bool:
    """Whether a place is an attribute of the module or its children, or below one."""
    return place[0] is not None and not place[0].startswith(kept_by_hooks.MARK)


def holdings(module: nn.Module) -> Iterator[tuple[str | None, str, Any]]:
    """The attributes and buffers of the module and its children, the variables of the script and what hooks keep: path,
    name and value. A container that hooks share, with each other or with the script, comes once."""
    for path, m in module.named_modules():
        yield from ((path, name, held) for name, held in list(m.__dict__.items()) if name not in OWN)
        yield from ((path, name, held) for name, held in list(m._buffers.items()))
    yield from outside(module)


class Function(nn.Module):
    """Stands for a function of torch in its proof: see `functions`."""


def outside(module: nn.Module) -> Iterator[tuple[str | None, str, Any]]:
    """The same without the attributes of modules. Functions of torch touch no variables."""
    if isinstance(module, Function):
        return
    known: set[int] = set()
    for m in module.modules():
        known.update(map(id, m.__dict__.values()))
    for name, held in list(owner_of(module, None).items()):
        if not name.startswith("__"):
            known.add(id(held))
            yield None, name, held
    for path, space in kept_by_hooks.namespaces(module):
        for name, held in list(space.items()):
            if name not in OWN and not (isinstance(held, (list, dict, torch.Tensor)) and id(held) in known):
                known.add(id(held))
                yield path, name, held


def _below(absolute: Place, place: Place, held: Any, depth: int) -> Iterator[tuple[Place, Place, Any]]:
    if isinstance(held, torch.Tensor) or (isinstance(held, (int, float)) and not isinstance(held, bool)):
        yield absolute, place, held
    elif isinstance(held, SEQUENCES) and depth:
        for i in range(max(0, len(held) - LAST), len(held)):
            yield from _below((*absolute, i), (*place, i - len(held)), held[i], depth - 1)
    elif isinstance(held, dict) and depth and len(held) <= MANY:
        for number, (key, value) in enumerate(held.items()):
            told = key if type(key) in PLAIN else f"{NTH}{number}"
            yield from _below((*absolute, key), (*place, told), value, depth - 1)


def _key(held: Any, told: Any) -> Any:
    """The key of a container's item, given its part of a place."""
    is_number = isinstance(held, dict) and isinstance(told, str) and told.startswith(NTH)
    return list(held)[int(told.removeprefix(NTH))] if is_number else told
