"""What the code of a module can reach: its attributes, the script's functions that it calls, the variables that these
name or close over, the attributes of its classes, and what lies in objects and dictionaries there."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from paceline.comm.call_site import is_of_library
from paceline.script.slicing import side_effects
from paceline.script.slicing.side_effects import OWN

MANY = 1000  # functions
OF_VARIABLES = {op for op in dis.opmap if op.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))}
TORCH = ("torch.", "builtins")
ELSEWHERE = ("__main__", "torch.", "paceline.")  # files whose variables are looked at anyhow, or not at all
EMPTY = types.CellType()
CODE = (
    *(type, nn.Module, torch.Tensor, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
    *(types.MethodType, functools.partial, torch.jit.ScriptFunction),
)
CLOSED = ("torch.utils.data", "builtins", "_", "paceline.")  # modules whose objects are not looked into
Holder = Any  # a dictionary of variables or attributes, a class, an object with slots, or a cell of a closure


def attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """Of the module and its children: path, who has it, name and value. Not what every module has."""
    for path, m in module.named_modules():
        yield from ((path, m, name, value) for name, value in list(m.__dict__.items()) if name not in OWN)


def variables(module: nn.Module, reach: Reach) -> Iterator[tuple[str | None, Holder, str, Any]]:
    """Of the script, of hooks, of functions and of classes, each once: where it is, who holds it, name and value."""
    for path, name, value in side_effects.outside(module):
        holder = side_effects.owner_of(module, path)
        yield path, getattr(holder, "cells", {}).get(name, holder), name, value
    seen: set[tuple[int, str]] = set()
    for where, holder, name, value in itertools.chain(reach.variables(), reach.class_attributes()):
        if (id(holder), name) not in seen and not (isinstance(holder, dict) and where.startswith(ELSEWHERE)):
            seen.add((id(holder), name))
            yield where, holder, name, value


class Reach:
    """The functions of the module's code, the names that they have, and the classes. What the code names of the script
    counts as its code: functions, classes, files. What it names of libraries does not."""

    def __init__(self, module: nn.Module) -> None:
        self.functions: dict[types.FunctionType, None] = {}
        self.classes: dict[type, None] = {}
        self.names: set[str] = set()
        self._variables: dict[tuple[int, str], tuple[str, dict[str, Any]]] = {}
        classes = {cls for kind in {type(m) for m in module.modules()} for cls in kind.__mro__}
        for cls in sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__)):
            self._follow_class(cls)
        for _, _, _, value in attributes(module):
            for item in value[:MANY] if isinstance(value, (list, tuple)) else [value]:
                self._follow(item)
                if is_object(item) and not _is_foreign(type(item)):
                    self._follow_class(type(item))

    def _follow_class(self, cls: type) -> None:
        if cls in self.classes or cls.__module__.startswith(TORCH) or len(self.functions) >= MANY:
            return
        self.classes[cls] = None
        for value in list(vars(cls).values()):
            self._follow(value)

    def _follow(self, value: Any) -> None:
        value = getattr(value, "__func__", value)
        if not isinstance(value, types.FunctionType) or value in self.functions or len(self.functions) >= MANY:
            return
        self.functions[value] = None
        for code in _codes(value.__code__):
            self.names.update(code.co_names, [text for text in code.co_consts if isinstance(text, str)])
            self._follow_names(_variables_of(code), value.__globals__, code.co_names)

    def _follow_names(self, names: Iterable[str], space: dict[str, Any], attributes: Iterable[str]) -> None:
        """`attributes`: names that the code looks up in what it gets, here in the files that it names."""
        for name in names:
            if name not in space or (id(space), name) in self._variables:
                continue
            self._variables[id(space), name] = (str(space.get("__name__")), space)
            other = space[name]
            if _is_foreign(other):
                continue
            if isinstance(other, types.FunctionType):
                self._follow(other)
            elif isinstance(other, type):
                self._follow_class(other)
            elif isinstance(other, types.ModuleType):
                self._follow_names(attributes, vars(other), attributes)
            elif is_object(other) and not _is_foreign(type(other)):
                self._follow_class(type(other))

    def variables(self) -> Iterator[tuple[str, Holder, str, Any]]:
        """That functions name or close over: where they are, for a person; who holds them; name and value."""
        for (_, name), (where, space) in self._variables.items():
            if name in space:
                yield where, space, name, space[name]
        for function in self.functions:
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if cell != EMPTY:
                    yield function.__qualname__, cell, name, cell.cell_contents

    def class_attributes(self) -> Iterator[tuple[str, type, str, Any]]:
        """The same of classes."""
        for cls in self.classes:
            for name, value in list(vars(cls).items()):
                if not name.startswith("__"):
                    yield cls.__qualname__, cls, name, value


def _is_foreign(value: Any) -> bool:
    """Whether a function, a class or a file is a library's."""
    if isinstance(value, types.FunctionType):
        return is_of_library(value.__code__.co_filename)
    if isinstance(value, type):
        value = sys.modules.get(value.__module__)
    return isinstance(value, types.ModuleType) and is_of_library(getattr(value, "__file__", None))


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """The code of a function, and of those defined in it."""
    found = [code]
    for one in found:
        found += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
    return found


@functools.lru_cache(10 * MANY)  # reading instructions is slow
def _variables_of(code: types.CodeType) -> frozenset[str]:
    """The names that are variables there, and no attributes: `self.n` does not name the script's `n`."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in OF_VARIABLES)


def is_object(value: Any) -> bool:
    """Whether a value is an object of a class of the script's, or of a library: a meter, a schedule, a log."""
    cls = type(value)
    return (
        not isinstance(value, CODE)
        and (cls.__module__ == "__main__" or not cls.__module__.startswith(CLOSED))
        and (hasattr(value, "__dict__") or bool(_slots(cls)))
    )


def _slots(cls: type) -> list[str]:
    named = (vars(base).get("__slots__", ()) for base in cls.__mro__)
    return [name for names in named for name in ([names] if isinstance(names, str) else names)]


def holder_in(value: Any) -> Holder | None:
    """Who holds the values inside an object, a class, a file of the script or a dictionary; None for any other one."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (type, types.ModuleType)):
        is_model = isinstance(value, type) and issubclass(value, nn.Module)
        if is_model or _is_foreign(value):
            return None
        return value if isinstance(value, type) else vars(value)
    return holder_of(value) if is_object(value) else None


def holder_of(value: Any) -> Holder:
    """Who holds the attributes of an object: its dictionary, or itself."""
    return vars(value) if hasattr(value, "__dict__") else value


def items(holder: Holder) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return list(dict.items(holder))
    if isinstance(holder, type):
        return list(vars(holder).items())
    return [(name, getattr(holder, name)) for name in _slots(type(holder)) if hasattr(holder, name)]


def get(holder: Holder, name: Any) -> Any:
    """A value; None if it is gone."""
    if isinstance(holder, dict):
        return dict.get(holder, name)
    if isinstance(holder, types.CellType):
        return None if holder == EMPTY else holder.cell_contents
    return vars(holder).get(name) if isinstance(holder, type) else getattr(holder, name, None)


def put(holder: Holder, name: Any, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    elif isinstance(holder, types.CellType):
        holder.cell_contents = value
    else:
        setattr(holder, name, value)
