"""Python values that a call may change besides the attributes of its modules: variables of the script, what hooks keep,
attributes of classes. They are kept before a trial and put back after it; and compared between trials, since what a
call leaves must not depend on the number of rows."""

from __future__ import annotations

import copy
import functools
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.script.slicing import side_effects

PLAIN = (str, int, float, bool, bytes, type(None), complex)
DEPTH = 5
MANY = 2000  # items of a container that are looked at
LARGE = 1 << 20  # bytes of an array that is kept
ITERATORS: tuple[type, ...] = (itertools.count, itertools.cycle, type(iter([])), type(iter(range(0))))
_EMPTY = types.CellType()
CODE = (
    *(type, nn.Module, torch.Tensor, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
    *(types.MethodType, functools.partial, torch.jit.ScriptFunction),
)
CLOSED = ("torch.utils.data", "builtins", "types", "_", "paceline.")  # modules whose objects are not looked into


def keep(module: nn.Module, *, attributes: bool = False) -> Callable[[], None]:
    """Returns a function that puts the present values back. `attributes`: also what containers in attributes of the
    module hold."""
    found: dict[int, tuple[Any, Any]] = {}
    for _, held in _outside(module):
        _keep(held, found, DEPTH)
    for _, _, held in _attributes(module) if attributes else ():
        _keep(held, found, DEPTH)
    cells = [(cell, cell.cell_contents) for f in _functions(module) for cell in f.__closure__ or () if cell != _EMPTY]
    for _, held in cells:
        _keep(held, found, DEPTH)
    for function in _functions(module):
        _keep([*(function.__defaults__ or ()), vars(function)], found, DEPTH)
    iterators = [(space, name, it, copy.copy(it)) for space, name, it in _iterators(module)]
    numbers, globals_of_code = list(_numbers(module)), list(_globals(module))
    classes = [(cls, name, value) for cls, name, value in _of_classes(module)]

    def put_back() -> None:
        for container, before in found.values():
            _put(container, before)
        for cell, held in cells:
            if cell.cell_contents is not held:
                cell.cell_contents = held
        for space, name, iterator, as_it_was in iterators:
            if iterator.__reduce__() != as_it_was.__reduce__():
                space[name] = as_it_was
        for path, name, value in numbers:
            owner = side_effects.owner_of(module, path)
            if owner.get(name) is not value:
                owner[name] = value
        for space, name, value in globals_of_code:
            if isinstance(value, PLAIN) and space.get(name) is not value:
                space[name] = value
        for cls, name, value in classes:
            if cls.__dict__.get(name) is not value:
                setattr(cls, name, value)

    return put_back


def look(module: nn.Module) -> tuple[dict[Any, Any], dict[Any, torch.Tensor]]:
    """In reach of the module, by where they are: all plain values (of containers also their sizes), and all tensors
    that are no parameters and no buffers."""
    values: dict[Any, Any] = {}
    tensors: dict[Any, torch.Tensor] = {}
    seen: set[int] = set()
    for path, m in module.named_modules():
        values[path, "training"] = m.training
    for path, name, value in _attributes(module):
        _list((path, name), value, values, tensors, seen, DEPTH)
    for where, held in _outside(module):
        _list(where, held, values, tensors, seen, DEPTH)
    for cls, name, value in _of_classes(module):
        _list((cls.__qualname__, name), value, values, tensors, seen, DEPTH)
    return values, tensors


def _attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for path, m in module.named_modules():
        yield from ((path, name, held) for name, held in list(m.__dict__.items()) if name not in side_effects.OWN)


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


def _outside(module: nn.Module) -> Iterator[tuple[Any, Any]]:
    for path, name, held in side_effects.outside(module):
        yield (path, name), held
    for space, name, held in _globals(module):
        yield (space.get("__name__"), name), held


def _iterators(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Of itertools, in variables of the script: `next(steps)`."""
    spaces = [side_effects.owner_of(module, None), *(space for space, _, _ in _globals(module))]
    for space in {id(space): space for space in spaces}.values():
        for name, value in list(space.items()):
            if isinstance(value, ITERATORS):
                yield space, name, value


def _numbers(module: nn.Module) -> Iterator[tuple[str | None, str, Any]]:
    return ((path, name, held) for path, name, held in side_effects.outside(module) if isinstance(held, PLAIN))


def _globals(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Variables of other files than the script that the modules' code names."""
    seen: set[tuple[int, str]] = set()
    for function in _functions(module):
        space = function.__globals__
        for name in _names(function):
            if name in space and (id(space), name) not in seen:
                seen.add((id(space), name))
                value = space[name]
                if isinstance(value, (*PLAIN, list, dict, set, deque, np.ndarray)) or is_object(value):
                    yield space, name, value


def _functions(module: nn.Module) -> Iterator[types.FunctionType]:
    """The functions of the modules' classes, and those in their attributes."""
    for cls in _classes(module):
        yield from (value for value in vars(cls).values() if isinstance(value, types.FunctionType))
    for _, _, value in _attributes(module):
        held = value if isinstance(value, (list, tuple)) else [value]
        yield from (item for item in held[:MANY] if isinstance(item, types.FunctionType))


def _classes(module: nn.Module) -> set[type]:
    """The script's own classes of modules, or a library's."""
    classes = {cls for kind in {type(m) for m in module.modules()} for cls in kind.__mro__}
    return {cls for cls in classes if not cls.__module__.startswith(("torch.", "builtins"))}


@functools.lru_cache(maxsize=10_000)
def _names(function: types.FunctionType) -> frozenset[str]:
    """The global variables that a function of another file than the script names."""
    file = str(function.__globals__.get("__name__"))
    if file == "__main__" or file.startswith(("torch.", "paceline.")):
        return frozenset()
    return frozenset(_named(function.__code__))


def _named(code: types.CodeType) -> set[str]:
    inner = (_named(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _of_classes(module: nn.Module) -> Iterator[tuple[type, str, Any]]:
    """Plain attributes, lists and dictionaries of the script's own classes of modules."""
    for cls in _classes(module):
        for name, value in list(vars(cls).items()):
            if not name.startswith("__") and type(value) in (*PLAIN, list, dict, set):
                yield cls, name, value


def is_object(value: Any) -> bool:
    """Whether a value is an object of a class of the script's, or of a library: a meter, a schedule, a log."""
    cls = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, CODE)
        and (cls.__module__ == "__main__" or not cls.__module__.startswith(CLOSED))
    )


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from list(value.items())[:MANY]
    elif isinstance(value, (list, tuple, deque)):
        yield from enumerate(list(value)[-MANY:])
    elif is_object(value):
        yield from list(vars(value).items())


def _keep(held: Any, found: dict[int, tuple[Any, Any]], depth: int) -> None:
    if not depth or id(held) in found or isinstance(held, (*PLAIN, torch.Tensor)):
        return
    if isinstance(held, np.ndarray) and held.nbytes <= LARGE:
        found[id(held)] = (held, held.copy())
    elif isinstance(held, (list, dict, set, deque)) and len(held) <= side_effects.MOST:
        found[id(held)] = (held, _content(held))
    if is_object(held):
        _keep(vars(held), found, depth)  # also of a dictionary of the script's own class
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
    else:
        now = _content(container)
        same = now == before if isinstance(before, set) else _has_same(now, before)
        if not same:
            container.clear()
            container.update(before)


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
