"""What a proof is valid for: the key of a call. Another key needs another proof.

The key has the mode of every module, the small values by which code may branch (attributes of modules, variables that
their methods and the script's functions name, settings in dictionaries, objects and classes), gradient and autocast
modes, hooks, and the arguments' structure, data types and pattern of shapes.
A value that changes from call to call (a counter, a temperature) is left out; then every call's operations are compared
with the proven ones.
"""

from __future__ import annotations

import enum
import sys
import types
import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from paceline.comm.call_site import is_of_library
from paceline.script import tree
from paceline.script.proof.surroundings import is_object
from paceline.script.slicing.arguments import kinds_of_arguments
from paceline.script.slicing.backward_hooks import Hooks
from paceline.script.slicing.side_effects import OWN

_Place = tuple[Any, str, Any]  # what holds a value, its name, and for an object the one that was seen
SMALL = (str, bool, int, float, enum.Enum, type(None))
MOST = 4000  # values to compare in each call
MANY = 1000  # functions of the modules' code
DEPTH = 3  # of objects in objects
OFTEN = 3  # changes after which a number is one that changes from call to call
# What scripts change in torch's own modules.
OF_TORCH = ("training", "p", "dim", "reduction", "ignore_index", "label_smoothing", "momentum", "track_running_stats")
SHORT = 16  # a list of settings


class _Values:
    """The small values of one module, listed once, and again when one of the objects that hold them is another one."""

    def __init__(self, module: nn.Module) -> None:
        self._holders: list[_Place] = []
        self._places: list[_Place] = []
        self._last: tuple[Any, ...] = ()
        self._changes: dict[int, int] = {}
        self._restless: set[int] = set()
        self._times = 0  # that they were listed
        self._classes: tuple[str, ...] = ()  # the script may replace a child
        self._list(module)

    def _list(self, module: nn.Module) -> None:
        found = _Reach(module)
        self._places, self._holders = found.places[:MOST], found.holders
        self._last, self._changes, self._restless = (), {}, set()
        self._times += 1
        self._classes = tuple(type(m).__qualname__ for m in module.modules())

    @property
    def is_restless(self) -> bool:
        return bool(self._restless) or self._times > OFTEN

    def now(self, module: nn.Module) -> tuple[Any, ...]:
        if self._times <= OFTEN and any(_get(held, name) is not value for held, name, value in self._holders):
            self._list(module)
        values = tuple([_told(_get(held, name)) for held, name, _ in self._places])
        if values != self._last:
            self._note_changes(values)
            self._last = values
        if not self._restless:
            return (self._classes, *values)
        return (self._classes, *(_outline(v) if i in self._restless else v for i, v in enumerate(values)))

    def _note_changes(self, values: tuple[Any, ...]) -> None:
        for i, (value, before) in enumerate(zip(values, self._last, strict=False)):
            if type(value) in (int, float) and value != before:
                self._changes[i] = self._changes.get(i, 0) + 1
                if self._changes[i] > OFTEN:
                    self._restless.add(i)


class Guards:
    """The keys of calls."""

    def __init__(self) -> None:
        self._values: weakref.WeakKeyDictionary[nn.Module, _Values] = weakref.WeakKeyDictionary()
        self._hooks = Hooks()
        self.by_sizes: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that compute otherwise for other sizes

    def key(self, module: nn.Module, given: Any, leaves: list[Any], *, values: bool) -> Hashable:
        """The key of this call. `values`: with the values of arguments that are no tensors."""
        return (
            self.switches(module),
            self._hooks.on(module),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            *_autocast("cpu"),
            *(_autocast("cuda") if torch.cuda.is_initialized() else ()),
            tree.structure(given),
            *kinds_of_arguments(leaves, values=values, sizes=module in self.by_sizes),
        )

    def switches(self, module: nn.Module) -> Hashable:
        """The values by which a script may switch the module's behaviour."""
        if module not in self._values:
            self._values[module] = _Values(module)
        return self._values[module].now(module)

    def is_restless(self, module: nn.Module) -> bool:
        """Whether a value changes from call to call, so that each call is to be compared with its proof."""
        return module in self._values and self._values[module].is_restless


def _autocast(kind: str) -> tuple[Any, ...]:
    enabled = torch.is_autocast_enabled(kind)
    return enabled, torch.get_autocast_dtype(kind) if enabled else None


def _is_small(value: Any) -> bool:
    return isinstance(value, SMALL) or (type(value) is tuple and all(map(_is_small, value)))


def _told(value: Any) -> Any:
    """What the key has of a value."""
    if type(value) is list and len(value) <= SHORT:
        value = tuple(value)
    return value if _is_small(value) else type(value)


def _outline(value: Any) -> Any:
    """What counts of a value that changes from call to call. With a factor of 0 or 1 an operation may do nothing."""
    return (type(value), value if value in (0, 1) else None)


def _get(held: Any, name: str) -> Any:
    if isinstance(held, types.CellType):
        return held.cell_contents if held != types.CellType() else None
    return held.get(name)


class _Reach:
    """Where the small values lie by which the modules' code may branch: attributes, variables that the code names, and
    what it names of dictionaries, objects and classes in these. Functions of the script that it calls count as its
    code; those of libraries do not."""

    def __init__(self, module: nn.Module) -> None:
        self.places: list[_Place] = []
        self.holders: list[_Place] = []
        self._seen: set[Any] = set()
        self._functions: list[types.FunctionType] = []
        self._names: set[str] = set()  # that the code has
        modules = list(module.modules())
        own = [m for m in modules if not type(m).__module__.startswith("torch.")]
        classes = {cls for m in own for cls in type(m).__mro__ if not cls.__module__.startswith(("torch.", "builtins"))}
        for cls in sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__)):
            for value in list(vars(cls).values()):
                self._follow(value)
        for m in own:
            for name, value in m.__dict__.items():
                if name not in OWN:
                    self._follow(value)
        for m in modules:
            self.holders += [(m._modules, name, child) for name, child in m._modules.items()]
            if type(m).__module__.startswith("torch."):
                self.places += [(m.__dict__, name, None) for name in OF_TORCH if name in m.__dict__]
                continue
            self.places.append((m.__dict__, "training", None))
            for name, value in list(m.__dict__.items()):
                if name not in OWN and name != "training":
                    self._add(m.__dict__, name, value, DEPTH)
        for cls in sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__)):
            for name, value in list(vars(cls).items()):
                if not name.startswith("__"):
                    self._add(vars(cls), name, value, DEPTH)
        for function in self._functions:
            for name in function.__code__.co_names:
                if name in function.__globals__:
                    self._add(function.__globals__, name, function.__globals__[name], DEPTH)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                self._add(cell, name, _get(cell, name), DEPTH)

    def _follow(self, value: Any) -> None:
        """Notes a function, and the script's functions that it names."""
        value = getattr(value, "__func__", value)
        if not isinstance(value, types.FunctionType) or value in self._functions or len(self._functions) >= MANY:
            return
        self._functions.append(value)
        codes = [value.__code__]
        for code in codes:
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            self._names.update(code.co_names, [text for text in code.co_consts if isinstance(text, str)])
        for code in codes:
            for name in code.co_names:
                other = value.__globals__.get(name)
                if isinstance(other, types.FunctionType) and not is_of_library(other.__code__.co_filename):
                    self._follow(other)

    def _add(self, held: Any, name: str, value: Any, depth: int) -> None:
        if (id(held), name) in self._seen:
            return
        self._seen.add((id(held), name))
        if _is_small(value) or type(value) is list:
            self.places.append((held, name, None))
            return
        inside = _inside(value)
        if not depth or inside is None or id(inside) in self._seen:
            return
        self._seen.add(id(inside))
        self.holders.append((held, name, value))
        for key, inner in list(inside.items()):
            if isinstance(key, str) and key in self._names and not key.startswith("__"):
                self._add(inside, key, inner, depth - 1)


def _inside(value: Any) -> Any:
    """The dictionary in which an object, a class, a file of the script or a dictionary holds its values; None for any
    other one."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (type, types.ModuleType)):
        module = sys.modules.get(value.__module__) if isinstance(value, type) else value
        is_model = isinstance(value, type) and issubclass(value, nn.Module)
        return None if is_model or is_of_library(getattr(module, "__file__", None)) else vars(value)
    return vars(value) if is_object(value) else None
