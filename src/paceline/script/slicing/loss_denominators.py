"""Denominators of losses computed inside a sliced call, which need not be numbers of rows.

A model that returns its own cross-entropy averages over the targets that count: padding is ignored, classes have
weights. Such means from several workers are combined by their denominators. The sum of such a mean and another term
cannot be combined.

In compiled code a graph is traced once and run often: there the denominator is an output of the graph, handed over by
an operation of our own (`paceline::note_average`) in a tensor that a CUDA graph writes to as well.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from paceline.script.patches import all_of, patch
from paceline.script.proof.recorder import hidden
from paceline.torch_private import is_being_traced, old_reduction


class Averages:
    """The averages taken by the current sliced call. `watching` is on inside sliced calls."""

    def __init__(self) -> None:
        self.watching = False
        self._combines = False  # the averages of parts of the call
        self._taken: list[tuple[torch.Tensor, torch.Tensor]] = []  # value, divisor
        self._counted: list[torch.Tensor] = []  # per average, which targets count
        self.traced = 0  # averages of compiled code
        self._noted: dict[torch.device, torch.Tensor] = {}  # of each: the divisor, and 1 if every target counts

    def begin(self) -> None:
        self.watching, self._taken, self._counted, self._combines, self.traced = True, [], [], False, 0

    def end(self) -> None:
        self.watching = False

    @contextmanager
    def inside(self) -> Iterator[Averages]:
        """Watches during the block, also in a call that is not sliced."""
        if self.watching:
            yield self
            return
        remove = self.find()
        self.begin()
        try:
            yield self
        finally:
            self.end()
            remove()

    def take(self, value: torch.Tensor, divisor: torch.Tensor) -> None:
        """Notes an average that was combined from others."""
        self._combines = True
        self._taken.append((value, divisor))

    def count_all(self, *, counted: bool) -> None:
        """Notes of averages that were combined whether all targets count."""
        self._counted.append(torch.tensor([counted], device="cpu"))

    def divisor_of(self, value: Any) -> torch.Tensor | None:
        """The denominator of a returned value; None if the value is not one of the averages taken."""
        return next((divisor for taken, divisor in self._taken if taken is value), None)

    def divisor(self, value: Any, number: int) -> torch.Tensor | None:
        """The denominator of a returned value: of the average that it is, or of the call's average of this number, of
        which it is a copy. None if none was seen (in compiled code)."""
        found = self.divisor_of(value)
        if found is None and number < len(self._taken) and not self._combines:
            found = self._taken[number][1]
        return found

    def traced_divisor(self, value: torch.Tensor, number: int) -> torch.Tensor:
        """The denominator of compiled code's average of this number."""
        return self._noted[value.device][number, 0].clone()

    @property
    def count(self) -> int:
        return len(self._taken)

    def all_count(self, traced: int = 0) -> bool:
        """Whether every average is one over all targets, each counted once: then it is a mean over rows. False if none
        was seen: a loss that is not torch.nn.functional's. `traced`: how many compiled code takes."""
        # Waits for a GPU, in such models only.
        counted = [*self._counted, *(noted[:traced, 1] == 1 for noted in self._noted.values() if traced)]
        return bool(counted) and all(bool(one.all()) for one in counted)

    def watch(self, plain: Callable[..., Any], default_ignored: int = -100) -> Callable[..., Any]:
        """Wraps a loss function of torch so that its denominator is noted."""
        names = tuple(inspect.signature(plain).parameters)

        @functools.wraps(plain)
        def loss(*args: Any, **kwargs: Any) -> Any:
            value = plain(*args, **kwargs)
            if torch.compiler.is_dynamo_compiling():  # the graph that it makes calls this function by its name
                return value
            if is_being_traced(value):
                return in_graph(value, dict(zip(names, args, strict=False)) | kwargs)
            # Under torch.set_default_device torch comes back here by the function's name.
            if self.watching and self.divisor_of(value) is None:
                with hidden():
                    note(value, dict(zip(names, args, strict=False)) | kwargs)
            return value

        def note(value: torch.Tensor, given: dict[str, Any]) -> None:
            if (found := _divisor(given, default_ignored)) is not None:
                divisor, counted = found
                self._taken.append((value, divisor))
                self._counted.append(counted)

        def in_graph(value: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
            if (found := _divisor(given, default_ignored)) is None:
                return value
            divisor, counted = found
            return torch.ops.paceline.note_average(value, divisor, counted.all())

        return loss

    def prepare(self, device: torch.device) -> None:
        """Before compiled code runs, since a CUDA graph takes the memory of what it makes for its own."""
        if device not in self._noted:
            self._noted[device] = torch.zeros(MOST, 2, dtype=torch.float64, device=device)

    def note_traced(self, value: torch.Tensor, divisor: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Compiled code takes an average; returns it."""
        if self.watching:
            self.prepare(value.device)
            noted = self._noted[value.device][min(self.traced, MOST - 1)]
            noted[0].copy_(divisor)
            noted[1].copy_(counted)
            self.traced += 1
        return value.clone()

    def find(self) -> Callable[[], None]:
        """Wraps torch's losses; returns a function that removes the wrappers."""
        _watched[:] = [self]
        if not _libraries:
            _define_operation()
        return all_of([patch(F, name, self.watch(getattr(F, name))) for name in ("cross_entropy", "nll_loss")])


def _divisor(given: dict[str, Any], default_ignored: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The denominator of a mean over targets, and which of them count (weighted ones do not count as one); None of
    another loss."""
    target, weight, reduction = given["target"], given.get("weight"), given.get("reduction", "mean")
    if (old := (given.get("size_average"), given.get("reduce"))) != (None, None):
        reduction = old_reduction(*old)
    if reduction != "mean" or target.is_floating_point():
        return None
    counted = target != given.get("ignore_index", default_ignored)
    if weight is None:
        return counted.sum().to(torch.float64), counted
    divisor = (weight[target.masked_fill(~counted, 0)] * counted).sum()
    return divisor.to(torch.float64), torch.zeros(1, dtype=torch.bool, device=target.device)


MOST = 64  # averages of one compiled call
_watched: list[Averages] = []  # those of this worker
_libraries: list[Any] = []  # what they define is there as long as they are


def _define_operation() -> None:
    library, name = torch.library.Library("paceline", "FRAGMENT"), "paceline::note_average"
    _libraries.append(library)
    library.define("note_average(Tensor value, Tensor divisor, Tensor counted) -> Tensor")
    library.impl("note_average", lambda *given: _watched[0].note_traced(*given), "CompositeExplicitAutograd")
    torch.library.register_fake(name, lambda value, divisor, counted: torch.empty_like(value), lib=library)
    torch.library.register_autograd(name, lambda context, grad: (grad, None, None), lib=library)
