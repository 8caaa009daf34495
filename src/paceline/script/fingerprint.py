"""Fingerprints of datasets: show whether loading a sample, or the script, has changed a dataset.

A dataset that changes its own state while it loads must be loaded in one process and in order. If the script changes a
dataset, processes need a new copy of it. The fingerprint covers everything that the dataset's code can reach:
attributes (also in slots), class attributes, containers, closures, and the globals that its functions name.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

LOADING = ("__getitem__", "__getitems__", "__call__", "forward")  # methods that make a sample
EMPTY_CELL = types.CellType()
PLAIN = (bool, int, float, complex, str, bytes, np.generic, range, slice, type(None))
OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType)  # have no state of the dataset
LIBRARIES = {"paceline", "torch", "torchvision", "torchaudio", "numpy", "PIL", *sys.stdlib_module_names} - {"__main__"}
DEPTH = 8
LOOKED = 100_000  # values of a dataset, and items of a container, that are compared at most
SAMPLED = 1000  # compared values of a large array, and compared items of a container other than numbers and strings
SMALL = 8 * LOOKED  # bytes up to which all values of an array are compared


def fingerprint(dataset: Any, *, identity: bool = False) -> list[Any]:
    """A list that compares equal as long as the dataset has not changed. `identity`: replacing an object by an equal
    one, or writing the same values into an array, also counts as a change."""
    return list(itertools.islice(_Look(identity).values(dataset, DEPTH), LOOKED))


class _Look:
    def __init__(self, identity: bool) -> None:
        self._identity = identity
        self._seen: dict[int, Any] = {}  # by id; keeps temporary objects alive, so that no id is used twice

    def values(self, thing: Any, depth: int) -> Iterator[Any]:
        if isinstance(thing, PLAIN):
            yield thing
            return
        if self._identity:
            yield id(thing)
        if id(thing) in self._seen or isinstance(thing, OPAQUE) or _is_of_library(thing):
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, torch.Tensor):
            yield from self._tensor(thing)
        elif isinstance(thing, (list, tuple, dict, set, frozenset, deque)):
            yield from self._container(thing, depth)
        elif (contents := _bytes_of(thing)) is not None:
            yield contents
        elif isinstance(thing, itertools.count):
            yield repr(thing)
        elif depth:
            for item in itertools.chain(held_by(thing), _class_data(thing)):
                yield from self.values(item, depth - 1)

    def _tensor(self, tensor: torch.Tensor) -> Iterator[Any]:
        if self._identity and not tensor.is_inference():
            yield tensor._version
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized:
            tensor = tensor.detach().resolve_conj().resolve_neg()
            yield _bytes_of((tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy())

    def _container(self, thing: Any, depth: int) -> Iterator[Any]:
        yield len(thing)
        items = itertools.chain.from_iterable(thing.items()) if isinstance(thing, dict) else thing
        nested = 0
        for item in itertools.islice(items, LOOKED):
            if isinstance(item, PLAIN):
                yield item
            elif depth and nested < SAMPLED:
                nested += 1
                yield from self.values(item, depth - 1)


def _bytes_of(thing: Any) -> int | None:
    """A hash of an array, a bytearray or a number shared between processes; of a large array, of some of its values."""
    try:
        array = thing if isinstance(thing, np.ndarray) else np.asarray(memoryview(thing))
    except TypeError:
        return None
    if array.dtype.hasobject:
        return None
    return hash((array if array.nbytes <= SMALL else array.flat[:: max(1, array.size // SAMPLED)]).tobytes())


def _is_of_library(thing: Any) -> bool:
    """Functions of libraries have no state of the dataset, and name thousands of other objects."""
    return isinstance(thing, types.FunctionType) and (thing.__module__ or "").partition(".")[0] in LIBRARIES


def _class_data(thing: Any) -> Iterator[Any]:
    """The data (not the code) of an object's classes, and the values in its slots."""
    for kind in type(thing).__mro__:
        for name, value in list(vars(kind).items()):
            if isinstance(value, types.MemberDescriptorType) and "__slots__" in vars(kind):
                try:
                    yield value.__get__(thing)
                except AttributeError:  # not set
                    yield None
            elif isinstance(value, (*PLAIN, list, dict, set, deque)) and not name.startswith("__"):
                yield value


def held_by(thing: Any) -> Iterator[Any]:
    """The objects that an object can reach while it loads a sample."""
    if isinstance(thing, (list, tuple)):
        yield from thing[:100]
    elif isinstance(thing, dict):
        yield from list(thing.values())[:100]
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, types.FunctionType):
        yield from (cell.cell_contents for cell in thing.__closure__ or () if cell != EMPTY_CELL)
        yield from thing.__defaults__ or ()
        yield from (thing.__globals__[name] for name in _names_in(thing.__code__) if name in thing.__globals__)
    else:
        yield from list(getattr(thing, "__dict__", {}).values())
        yield from (vars(kind)[name] for kind in type(thing).__mro__ for name in LOADING if name in vars(kind))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # inner functions and comprehensions
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
