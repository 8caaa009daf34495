"""The values that must be equal on all workers at a model's call: its weights, and the call's arguments.

Weights are all parameters, also frozen ones, and the buffers that no call of the model changes. A buffer that calls
change (running statistics) depends on each worker's slices until it is averaged.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.agreement.digest import Described, described
from paceline.script import tree
from paceline.script.rows.tensor import Rows
from paceline.torch_private import BatchOrInstanceNorm, is_dtensor

FIRST = 2  # steps of a model that are all compared; after them the 4th, 16th, 64th, …
EVERY = 1024  # … and every 1024th
PLAIN = (bool, int, str, bytes, type(None))


def is_due(count: int) -> bool:
    """Whether weights and arguments are compared after `count` steps."""
    is_power_of_4 = count & (count - 1) == 0 and count.bit_length() % 2 == 1
    return count <= FIRST or count % EVERY == 0 or (count < EVERY and is_power_of_4)


@dataclass(eq=False, slots=True)
class Watched:
    """One root module, with a schedule of its own: a script may call several models in turn."""

    number: int  # in the order of the models' first calls
    name: str
    of_parts: bool = True  # also weights that a strategy has divided: their parts
    updates: int | None = None  # the script's updates when this model was last called
    steps: int = 0  # calls that followed an update
    evaluated: int | None = None  # the script's updates at the last evaluation: a call without gradients
    evaluations: int = 0  # the first ones after an update
    idle: int = 0  # all other calls
    # Weak: this record is the value of a weak dictionary whose key may be the same module.
    _buffers: list[tuple[weakref.ref[nn.Module], dict[str, Any], str, str]] = field(default_factory=list)
    # Buffers that a call has changed: path of the module, and name. Not ids, which Python reuses.
    _changed_buffers: set[tuple[str, str]] = field(default_factory=set)
    _before: list[Any] = field(default_factory=list)

    def tick(self, updates: int, *, evaluates: bool) -> tuple[bool, Literal["step", "evaluation", "idle"]]:
        """At the start of a call: whether to compare it, and which kind of call it is. Each kind has a schedule of its
        own, so the first one of each is compared."""
        if evaluates and self.evaluated != updates:
            self.evaluated, self.evaluations = updates, self.evaluations + 1
            return is_due(self.evaluations), "evaluation"
        if self.updates is None and not evaluates:
            self.updates = updates
            return True, "step"
        if self.updates != updates and not evaluates:
            self.updates, self.steps = updates, self.steps + 1
            return is_due(self.steps), "step"
        self.idle += 1
        return is_due(self.idle), "idle"

    @property
    def last(self) -> int:
        """The script's updates at the last call."""
        return max(self.updates or 0, self.evaluated or 0)

    def is_due_next(self) -> bool:
        """Whether the next call after an update will be compared."""
        return is_due(self.steps + 1)

    def weights(self, module: nn.Module) -> list[tuple[str, torch.Tensor]]:
        """Names and tensors, in the same order on every worker."""
        # Without tensors that a functional call has put in place of parameters: they have a graph.
        found: list[tuple[str, torch.Tensor]] = [
            (f"{self.name}.{name}", p)
            for name, p in module.named_parameters()
            if not is_lazy(p) and p.is_leaf
            if not is_dtensor(p)  # each part is held by one worker only
        ]
        self._buffers = []
        for path, child in module.named_modules():
            for name, buffer in child._buffers.items() if not isinstance(child, BatchOrInstanceNorm) else ():
                if isinstance(buffer, torch.Tensor) and not is_lazy(buffer) and buffer.is_leaf:
                    self._buffers.append((weakref.ref(child), child._buffers, path, name))
                    if (path, name) not in self._changed_buffers:
                        found.append((".".join(filter(None, (self.name, path, name))), buffer))
        return [
            (name.replace("._orig_mod", ""), part)
            for name, tensor in found
            if (part := getattr(tensor, "local", tensor)) is tensor or self.of_parts
        ]

    def look_at_buffers(self) -> None:
        """Notes the buffers' versions before a call."""
        if self._buffers:
            self._before = [_state(buffers.get(name)) for _, buffers, _, name in self._buffers]

    def note_changed_buffers(self) -> None:
        """Notes after the call which buffers it has changed."""
        before_call, self._before = self._before, []
        for (child, buffers, path, name), before in zip(self._buffers, before_call, strict=False):
            owner, now = child(), _state(buffers.get(name))
            # A dry run of the proof restores buffers, and leaves another dictionary behind: that is no change.
            if owner is not None and owner._buffers is buffers and (now[0] is not before[0] or now[1] != before[1]):
                self._changed_buffers.add((path, name))


def _state(buffer: Any) -> tuple[Any, int]:
    """The buffer and its version. The buffer itself, not its id: a new buffer may get the id of a freed one, on one
    worker and not on another."""
    if not isinstance(buffer, torch.Tensor):
        return None, 0
    return buffer, -1 if buffer.is_inference() else buffer._version


@dataclass(frozen=True, slots=True)
class Look:
    """What was compared, and when."""

    models: tuple[int, ...]
    step: int  # of the script
    updated: str  # the line of the last update
    line: str  # of the call or the save
    arguments: tuple[Described, ...] = ()
    plain: str = ""  # the structure and the plain values of the arguments


def layout(weights: list[tuple[str, torch.Tensor]]) -> int:
    """A checksum of the shapes and types. Not of the names, which are for people."""
    return zlib.crc32(repr([(_shape(tensor), tensor.dtype) for _, tensor in weights]).encode())


def arguments(given: Any) -> tuple[list[Described], str]:
    """The tensors and floats among a call's arguments, and a text for the structure and all other plain values."""
    args, kwargs = given
    leaves = tree.leaves(given)
    names = [*(path for i, a in enumerate(args) for path in tree.paths(a, f"argument {i}")), *_names(kwargs)]
    found: list[Described] = []
    rest: list[Any] = []
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, Rows):  # own rows, which differ between the workers
            rest.append((name, tuple(leaf.shape), leaf.dtype))
        elif isinstance(leaf, torch.Tensor):
            found.append(described(name, leaf))
            rest.append((name, _shape(leaf), leaf.dtype))
        elif isinstance(leaf, float):
            found.append(described(name, leaf))
        elif isinstance(leaf, PLAIN):
            rest.append((name, leaf))
    return found, repr(rest)


def _names(kwargs: dict[str, Any]) -> Iterator[str]:
    for key, value in kwargs.items():
        yield from tree.paths(value, f"argument {key}")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(tensor.shape)
    except RuntimeError:  # a nested tensor has no shape
        return ()
