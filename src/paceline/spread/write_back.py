"""Whole copies of divided tensors, of which the script holds views: torch's views, and arrays of NumPy.

A view of a copy can be written to, and what is written must reach the divided tensor. Torch counts the changes of a
tensor, so that a changed copy is found at once. NumPy does not: the numbers of a copy with arrays are compared by a
digest, at few places (a model's call, an update). An array that has outlived `PATIENCE` such places without a change is
made read-only, so that a later write raises.

Views that live at the same time are views of one copy, as in one process. A view does not follow later updates of the
divided tensor; a write into such a view is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.agreement.digest import digest
from paceline.errors import ScriptError
from paceline.script import tree

PATIENCE = 8  # comparisons of an array


@dataclass(slots=True, eq=False)
class _Copy:
    """`views` and `arrays` of `whole`, which is a copy of `target`. `state` of the target: it changes with its numbers.
    `bits`: a digest, if there are arrays."""

    target: Any
    whole: torch.Tensor
    state: Hashable
    version: int
    views: list[weakref.ref[Any]]
    arrays: list[weakref.ref[Any]]
    bits: list[int] | None = None
    looks: int = 0


class LentCopies:
    """The copies of one worker, of tensors of these `kinds`. `whole(target)` gathers a divided tensor, `keep(target,
    whole)` writes a copy's numbers to it, and `part_of(target)` is this worker's part; None if it has none."""

    def __init__(
        self,
        kinds: tuple[type, ...],
        whole: Callable[[Any], torch.Tensor],
        keep: Callable[[Any, torch.Tensor], None],
        part_of: Callable[[Any], torch.Tensor | None],
    ) -> None:
        self._kinds, self._whole, self._keep, self._part_of = kinds, whole, keep, part_of
        self._copies: list[_Copy] = []

    def known(self, target: Any, full: torch.Tensor) -> torch.Tensor:
        """The copy of which the script has views already; otherwise `full`, a new one."""
        if self._copies and not full.requires_grad:
            state = self._state_of(target)
            for copy in self._copies:
                same = copy.state == state and copy.whole.shape == full.shape and copy.whole.stride() == full.stride()
                if same and not copy.whole.requires_grad:
                    return copy.whole
        return full

    def on_wholes(self, f: Callable[..., Any], args: Any, kwargs: Any, aims: Sequence[Any] = ()) -> Any:
        """What a function of torch returns for whole tensors in place of the divided ones. What it has changed is
        written back, and so are the copies of `aims`: not every function of lists counts changes. Remembers the copies
        of which it returns views. Every worker calls it; waits for all."""
        copies: list[tuple[Any, torch.Tensor]] = []

        def put(leaf: Any) -> Any:
            if not isinstance(leaf, self._kinds):
                return leaf
            full = next((full for target, full in copies if target is leaf), None)
            if full is None:
                full = self.known(leaf, self._whole(leaf))
                copies.append((leaf, full))
            return full

        given, named = tree.replace((args, kwargs), put)
        versions = [_version(full) for _, full in copies]
        found = f(*given, **named)
        for (target, full), version in zip(copies, versions, strict=True):
            if _version(full) != version or any(aim is target for aim in aims):
                self._keep(target, full)
                for copy in self._copies:
                    if copy.whole is full:
                        self._note(copy)
            found = target if found is full else found
            self.remember(target, full, found)
        return found

    def remember(self, target: Any, full: torch.Tensor, found: Any) -> None:
        """`found` is what a function of this copy has returned."""
        leaves = found if isinstance(found, (list, tuple)) else (found,)
        views = [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf._base is full]
        arrays = [weakref.ref(leaf) for leaf in leaves if isinstance(leaf, np.ndarray)]
        if not (views or arrays):
            return
        copy = next((copy for copy in self._copies if copy.whole is full), None)
        if copy is None:
            copy = _Copy(target, full, self._state_of(target), _version(full), [], [])
            self._copies.append(copy)
        copy.views += views
        copy.arrays += arrays
        if arrays and copy.bits is None:
            copy.bits = _bits(full)

    def write_back(self, *, arrays: bool = False) -> None:
        """Brings changed copies to the divided tensors. Every worker calls it at the same places; nothing is sent."""
        if not self._copies:
            return
        copies, self._copies = self._copies, []
        for copy in copies:
            changed = _version(copy.whole) != copy.version
            if arrays and copy.bits is not None:
                bits = _bits(copy.whole)
                changed, copy.bits, copy.looks = changed or bits != copy.bits, bits, copy.looks + 1
            if changed:
                self._write(copy)
            if self._is_held(copy, compared=arrays):
                self._copies.append(copy)

    def _write(self, copy: _Copy) -> None:
        if self._state_of(copy.target) != copy.state:
            raise ScriptError(
                f"The script writes into a view of a tensor of shape {tuple(copy.whole.shape)} that the strategy has "
                "divided among the workers, and the tensor was changed after the view was made.",
                advice="Make the view anew before each write (weight.data[0] = …), or use --strategy mirrored.",
            )
        self._keep(copy.target, copy.whole)
        self._note(copy)

    def _state_of(self, target: Any) -> tuple[int, ...]:
        """The memory and the numbers of the part. Not torch's count of changes: a DTensor's function does not count."""
        with torch.no_grad():
            part = self._part_of(target)
            return (id(target),) if part is None else (part.data_ptr(), *_bits(part), *part.shape)

    def _note(self, copy: _Copy) -> None:
        """The copy and the divided tensor have the same numbers now."""
        copy.version, copy.looks, copy.state = _version(copy.whole), 0, self._state_of(copy.target)
        if copy.bits is not None:
            copy.bits = _bits(copy.whole)

    def _is_held(self, copy: _Copy, *, compared: bool) -> bool:
        """Whether the script may still write, or has perhaps written through an array since the last comparison."""
        held = [array for ref in copy.arrays if (array := ref()) is not None]
        if copy.looks >= PATIENCE:
            for array in held:
                array.flags.writeable = False
            copy.arrays, copy.bits, held = [], None, []
        return bool(held) or any(ref() is not None for ref in copy.views) or (bool(copy.arrays) and not compared)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _bits(tensor: torch.Tensor) -> list[int]:
    return [int(number) for number in digest([tensor])]
