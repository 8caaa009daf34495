"""What a proof is valid for: the key of a call. Another key needs another proof.

The key has the mode of every module, the small values by which code may branch (attributes of modules, variables that
their methods and the script's functions name, settings in dictionaries, objects and classes), gradient and autocast
modes, hooks, and the arguments' structure, data types and pattern of shapes.
A value that changes from call to call (a counter, a temperature) is left out; then every call's operations are compared
with the proven ones.
"""

from __future__ import annotations

import enum
import itertools
import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from paceline.script import tree
from paceline.script.proof.arguments import kinds_of_arguments
from paceline.script.proof.backward_hooks import Hooks
from paceline.script.proof.reach import Reach, attributes, get, holder_in, items

_Place = tuple[Any, str, Any]  # what holds a value, its name, and for an object the one that was seen
SMALL = (str, bool, int, float, enum.Enum, type(None))
MOST = 4000  # values to compare in each call
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
        found = _Small(module)
        self._places, self._holders = found.places[:MOST], found.holders
        self._last, self._changes, self._restless = (), {}, set()
        self._times += 1
        self._classes = tuple(type(m).__qualname__ for m in module.modules())

    @property
    def is_restless(self) -> bool:
        return bool(self._restless) or self._times > OFTEN

    def now(self, module: nn.Module) -> tuple[Any, ...]:
        if self._times <= OFTEN and any(get(held, name) is not value for held, name, value in self._holders):
            self._list(module)
        values = tuple([_told(get(held, name)) for held, name, _ in self._places])
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
            number_modes(),
            tree.structure(given),
            *kinds_of_arguments(leaves, values=values, sizes=module in self.by_sizes),
        )

    def switches(self, module: nn.Module) -> Hashable:
        """The values by which a script may switch the module's behaviour."""
        if module not in self._values:
            self._values[module] = _Values(module)
        return self._values[module].now(module)

    def forget(self, module: nn.Module) -> None:
        """The module has other modules now."""
        self._values.pop(module, None)
        self._hooks.forget(module)

    def is_restless(self, module: nn.Module) -> bool:
        """Whether a value changes from call to call, so that each call is to be compared with its proof."""
        return module in self._values and self._values[module].is_restless


def number_modes() -> Hashable:
    """What decides about gradients and precision."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *_autocast("cpu"),
        *(_autocast("cuda") if torch.cuda.is_initialized() else ()),
    )


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


class _Small:
    """Where the small values lie by which the modules' code may branch: attributes, variables that the code names, and
    what it names of dictionaries, objects and classes in these. Functions of the script that it calls count as its
    code; those of libraries do not."""

    def __init__(self, module: nn.Module) -> None:
        self.places: list[_Place] = []
        self.holders: list[_Place] = []
        self._seen: set[Any] = set()
        self._reach = reach = Reach(module)
        for m in module.modules():
            self.holders += [(m._modules, name, child) for name, child in m._modules.items()]
            watched = OF_TORCH if _is_torchs(m) else ("training",)
            self.places += [(m.__dict__, name, None) for name in watched if name in m.__dict__]
        for _, m, name, value in attributes(module):
            if not _is_torchs(m):
                self._add(m.__dict__, name, value, DEPTH)
        for _, holder, name, value in itertools.chain(reach.class_attributes(), reach.variables()):
            self._add(holder, name, value, DEPTH)

    def _add(self, held: Any, name: str, value: Any, depth: int) -> None:
        if (id(held), name) in self._seen:
            return
        self._seen.add((id(held), name))
        if _is_small(value) or type(value) is list:
            self.places.append((held, name, None))
            return
        holder = holder_in(value) if depth else None
        if holder is None or id(holder) in self._seen:
            return
        self._seen.add(id(holder))
        self.holders.append((held, name, value))
        for key, inner in items(holder):
            if isinstance(key, str) and key in self._reach.names and not key.startswith("__"):
                self._add(holder, key, inner, depth - 1)


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")
