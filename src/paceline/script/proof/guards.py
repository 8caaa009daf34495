"""What a proof is valid for: the key of a call. Another key needs another proof.

The key has the mode of every module, the small values by which code may branch (attributes of modules, variables that
their methods name), gradient and autocast modes, hooks, and the arguments' structure, data types and pattern of shapes.
A value that changes from call to call (a counter, a temperature) is left out; then every call's operations are compared
with the proven ones.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

from paceline.script import tree
from paceline.script.slicing.arguments import kinds_of_arguments
from paceline.script.slicing.backward_hooks import Hooks
from paceline.script.slicing.side_effects import OWN

SMALL = (str, bool, int, float, enum.Enum, type(None))
MOST = 4000  # values to compare in each call
OFTEN = 3  # changes after which a number is one that changes from call to call
OF_TORCH = ("training", "p")  # what scripts change in torch's own modules


class _Values:
    """The small values of one module, listed once."""

    def __init__(self, module: nn.Module) -> None:
        self._places = list(_places(module))[:MOST]
        self._last: tuple[Any, ...] = ()
        self._changes = [0] * len(self._places)
        self._restless: set[int] = set()

    @property
    def is_restless(self) -> bool:
        return bool(self._restless)

    def now(self) -> tuple[Any, ...]:
        values = tuple([v if _is_small(v := held.get(name)) else type(v) for held, name in self._places])
        if values != self._last:
            self._note_changes(values)
            self._last = values
        return tuple(type(v) if i in self._restless else v for i, v in enumerate(values)) if self._restless else values

    def _note_changes(self, values: tuple[Any, ...]) -> None:
        for i, (value, before) in enumerate(zip(values, self._last, strict=False)):
            if type(value) in (int, float) and value != before:
                self._changes[i] += 1
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
        return self._values[module].now()

    def is_restless(self, module: nn.Module) -> bool:
        """Whether a value changes from call to call, so that each call is to be compared with its proof."""
        return module in self._values and self._values[module].is_restless


def _autocast(kind: str) -> tuple[Any, ...]:
    enabled = torch.is_autocast_enabled(kind)
    return enabled, torch.get_autocast_dtype(kind) if enabled else None


def _is_small(value: Any) -> bool:
    return isinstance(value, SMALL) or (type(value) is tuple and all(map(_is_small, value)))


def _places(module: nn.Module) -> Iterator[tuple[Any, str]]:
    classes: set[type] = set()
    for m in module.modules():
        if type(m).__module__.startswith("torch."):
            yield from ((m.__dict__, name) for name in OF_TORCH if name in m.__dict__)
            continue
        yield m.__dict__, "training"
        names = [name for name, value in m.__dict__.items() if _is_small(value)]
        yield from ((m.__dict__, name) for name in names if name not in OWN and name != "training")
        classes.update(cls for cls in type(m).__mro__ if not cls.__module__.startswith(("torch.", "builtins")))
    seen: set[tuple[int, str]] = set()
    for cls in sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__)):
        for name, value in list(vars(cls).items()):
            if not name.startswith("__") and _is_small(value):
                yield vars(cls), name
            if isinstance(value, types.FunctionType):
                for used in value.__code__.co_names:
                    held = value.__globals__
                    if (id(held), used) not in seen and used in held and _is_small(held[used]):
                        seen.add((id(held), used))
                        yield held, used
