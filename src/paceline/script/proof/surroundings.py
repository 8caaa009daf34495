"""What a call may change besides its output: attributes of its modules, variables of the script, what hooks keep,
attributes of classes and of objects, containers, iterators, random generators. One walk finds all of it. It is kept
before a call that may be undone, and put back; and compared between trials, since what a call leaves must not depend on
the number of rows."""

from __future__ import annotations

import copy
import itertools
import logging
import pickle
import random
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.script import rng, streams
from paceline.script.proof import side_effects
from paceline.script.proof.reach import Holder, Reach, get, holder_of, is_object, items, put, variables
from paceline.script.proof.reach import attributes as of_modules
from paceline.torch_private import uncompiled

PLAIN = (str, int, float, bool, bytes, type(None), complex)
DEPTH = 5
MANY = 2000  # items of a container that are looked at
LARGE = 1 << 20  # bytes of an array or a tensor that is kept
ALL = 32 * LARGE  # … and of all of them
ITERATORS: tuple[type, ...] = (itertools.count, itertools.cycle, type(iter([])), type(iter(range(0))))
GENERATORS: tuple[type, ...] = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
LOOKED_AT: tuple[type, ...] = (*PLAIN, *ITERATORS, *GENERATORS, list, tuple, dict, set, deque, np.ndarray, torch.Tensor)
NUMBERS = frozenset(PLAIN)
CLOSED: tuple[type, ...] = (*PLAIN, torch.Tensor, logging.Logger, *GENERATORS)  # all loggers hold each other
NOT_STATE = ("_parameters", "_buffers", "_modules")


class Spot(NamedTuple):
    """A value; where it is, for a person; who holds it, under which name."""

    where: tuple[Any, ...]
    holder: Holder
    name: Any
    value: Any


def _variables(module: nn.Module, reach: Reach) -> Iterator[Spot]:
    for path, holder, name, value in variables(module, reach):
        if isinstance(value, LOOKED_AT) or is_object(value):
            yield Spot((path, name), holder, name, value)


def _attributes(module: nn.Module) -> Iterator[Spot]:
    return (Spot((path, name), vars(m), name, value) for path, m, name, value in of_modules(module))


def _walk(spots: Iterable[Spot], *, plain: bool) -> Iterator[Spot]:
    """These and all that lies in their values, each container and each object once. `plain`: also numbers and texts
    that lie in others."""
    seen: set[int] = set()
    todo = deque((spot, DEPTH) for spot in spots)
    while todo:
        spot, depth = todo.popleft()
        yield spot
        value = holder = spot.value
        if not depth or type(value) in NUMBERS or id(value) in seen or isinstance(value, CLOSED):
            continue
        seen.add(id(value))
        inside: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            inside = list(dict.items(value))[:MANY]
        elif isinstance(value, (list, tuple, deque)):
            inside = enumerate(list(value)[-MANY:])
        if is_object(value):  # also a dictionary of the script's own class
            holder = holder_of(value)
            inside = [*inside, *items(holder)]
        for key, inner in inside:
            is_plain = type(inner) in NUMBERS
            if is_plain and not plain:
                continue
            told = key if type(key) in NUMBERS else type(key).__name__
            found = Spot((*spot.where, told), holder, key, inner)
            if is_plain:
                yield found
            else:
                todo.append((found, depth - 1))


class State:
    """What a call of a module may change, as it is when this is made."""

    def __init__(self, module: nn.Module, reach: Reach | None = None, *, attributes: bool = True) -> None:
        """`attributes`: also those of the module and its children, and their buffers."""
        subject = uncompiled(module)
        reach = reach or Reach(subject)
        self._streams = rng.snapshot()
        self._contents: dict[int, tuple[Any, Any]] = {}  # of containers and objects
        self._numbers: dict[int, tuple[Any, Any]] = {}  # of arrays and tensors
        self._generators: dict[int, tuple[Any, Any]] = {}
        self._iterators: dict[int, tuple[Any, Any]] = {}
        self._modules: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._room = ALL
        spots = list(_variables(subject, reach))
        self._spots = [(spot, _weak(spot.value)) for spot in spots]
        self._spots = [(spot._replace(value=None), kept) for spot, kept in self._spots]
        idle = [spot for spot in spots if spot.where[0] is None and spot.name not in reach.names]
        named = [spot for spot in spots if spot.where[0] is not None or spot.name in reach.names]
        for function in reach.functions:
            named += [Spot((), None, "", value) for value in (*(function.__defaults__ or ()), vars(function))]
        for m in subject.modules() if attributes else ():
            self._modules.append((vars(m), {n: _weak(v) for n, v in vars(m).items() if n not in NOT_STATE}))
            self._contents[id(m._buffers)] = m._buffers, dict(m._buffers)
            made = [buffer for buffer in m._buffers.values() if buffer is not None and not is_lazy(buffer)]
            self._numbers.update((id(buffer), (buffer, buffer.clone())) for buffer in made)
        for spot in _walk([*named, *(_attributes(subject) if attributes else ())], plain=False):
            self._keep(spot.value)
            self._keep_numbers(spot.value)
        for spot in _walk(
            idle, plain=False
        ):  # no code names these: a call may change them through an object, but no numbers
            self._keep(spot.value)

    def _keep(self, value: Any) -> None:
        if type(value) in NUMBERS:
            return
        if isinstance(value, ITERATORS):
            self._iterators[id(value)] = value, copy.copy(value)
        elif isinstance(value, GENERATORS):
            if not isinstance(value, random.SystemRandom):  # has no state
                self._generators[id(value)] = value, streams.state_of(value)
        elif isinstance(value, (list, dict, set, deque)) and _length(value) <= side_effects.MOST:
            self._contents.setdefault(id(value), (value, _content(value)))
        if is_object(value):
            holder = holder_of(value)
            self._contents.setdefault(id(holder), (holder, {name: _weak(inner) for name, inner in items(holder)}))

    def _keep_numbers(self, value: Any) -> None:
        if id(value) in self._numbers or not isinstance(value, (np.ndarray, torch.Tensor)):
            return
        if isinstance(value, np.ndarray):
            is_kept = not value.dtype.hasobject
        else:  # parameters are compared by their versions
            is_kept = type(value) is torch.Tensor and not (value.requires_grad or value.is_meta)
            is_kept = is_kept and value.layout is torch.strided
        if is_kept and value.nbytes <= min(LARGE, self._room):
            self._room -= value.nbytes
            self._numbers[id(value)] = value, value.copy() if isinstance(value, np.ndarray) else value.clone()

    def new_tensors(self) -> list[tuple[dict[str, Any], str]]:
        """Where a call has left tensors that need gradients: the attributes of a module, and a name."""
        return [
            (now, name)
            for now, before in self._modules
            for name, value in now.items()
            if isinstance(value, torch.Tensor) and value.requires_grad and not isinstance(value, nn.Parameter)
            if name not in before or _strong(before[name]) is not value
        ]

    def put_back(self) -> None:
        rng.restore(self._streams)
        for generator, state in self._generators.values():
            streams.set_state(generator, state)
        for numbers, before in self._numbers.values():
            put_numbers(numbers, before)
        moved = [kept for kept in self._iterators.values() if kept[0].__reduce__() != kept[1].__reduce__()]
        anew = {id(iterator): copy.copy(before) for iterator, before in moved}

        def value_of(kept: Any) -> Any:
            value = _strong(kept)
            return anew.get(id(value), value)

        for container, content in self._contents.values():
            _put(container, content, value_of)
        for now, attributes in self._modules:
            for name in [name for name in now if name not in attributes and name not in NOT_STATE]:
                del now[name]
            now.update((name, value_of(kept)) for name, kept in attributes.items())
        for spot, kept in self._spots:
            if get(spot.holder, spot.name) is not (value := value_of(kept)):
                put(spot.holder, spot.name, value)


def _length(container: Any) -> int:
    """Of a dictionary, whatever its class: that of a divided optimizer's state asks the other workers, of which some
    may have no trial to make."""
    return dict.__len__(container) if isinstance(container, dict) else len(container)


class _Graph:
    """A tensor with a graph: only its numbers, once nobody else has it. The graph of one call must not keep that of the
    call before."""

    def __init__(self, value: torch.Tensor) -> None:
        self.numbers, self.whole = value.detach(), weakref.ref(value)


def _weak(value: Any) -> Any:
    has_graph = isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf
    return _Graph(value) if has_graph else value


def _strong(kept: Any) -> Any:
    if not isinstance(kept, _Graph):
        return kept
    whole = kept.whole()
    return kept.numbers if whole is None else whole


def _content(container: Any) -> Any:
    """A plain copy, whatever the class."""
    if isinstance(container, dict):
        return {key: _weak(value) for key, value in dict.items(container)}
    if isinstance(container, set):
        return set(container)
    return [*itertools.islice(container, max(0, len(container) - MANY)), *map(_weak, list(container)[-MANY:])]


def _put(container: Any, content: Any, value_of: Callable[[Any], Any]) -> None:
    if isinstance(container, set):
        if container != content:
            container.clear()
            container.update(content)
    elif isinstance(container, (list, deque)):
        before = list(map(value_of, content))
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container.clear()
            container.extend(before)
    else:
        held, now = {name: value_of(kept) for name, kept in content.items()}, dict(items(container))
        if list(now) != list(held) or any(now[name] is not value for name, value in held.items()):
            if isinstance(container, dict):
                dict.clear(container)
            for name, value in held.items():
                put(container, name, value)


@torch.no_grad()
def put_numbers(numbers: Any, before: Any) -> None:
    """Gives an array or a tensor these numbers, unseen by autograd."""
    if isinstance(numbers, np.ndarray):
        if not np.array_equal(numbers, before):
            numbers[...] = before
    elif not torch.equal(numbers, before):
        # cuDNN's batch norm saves its running statistics, which have not changed since its call.
        numbers.data.copy_(before)


class Look(NamedTuple):
    """What a call can reach, by where it is: all plain values (of containers also their sizes), and all tensors that
    are no parameters and no buffers. And Python's and numpy's generators."""

    values: dict[Any, Any]
    tensors: dict[Any, torch.Tensor]
    generators: list[Any]

    def digest(self) -> int:
        """A checksum of the present states of the generators."""
        return zlib.crc32(b"".join(map(pickle.dumps, self.generators)))


def look(module: nn.Module, reach: Reach) -> Look:
    found = Look({(path, "training"): m.training for path, m in module.named_modules()}, {}, [])
    for where, _, _, value in _walk(itertools.chain(_attributes(module), _variables(module, reach)), plain=True):
        if type(value) in NUMBERS:
            found.values[where] = value
        elif type(value) in (torch.Tensor, nn.Parameter):  # no sharded output, which would be gathered
            found.tensors[where] = value
        elif isinstance(value, (np.ndarray, np.generic)):
            is_small = value.nbytes <= LARGE and value.dtype != object
            found.values[where] = value.tobytes() if is_small else value.shape
        elif isinstance(value, (list, tuple, dict, set, deque)):
            found.values[(*where, "len")] = _length(value)
        elif isinstance(value, GENERATORS) and not isinstance(value, (torch.Generator, random.SystemRandom)):
            found.generators.append(value)
    return found


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
