"""Denominators of losses computed inside a sliced call, which need not be numbers of rows.

A model that returns its own cross-entropy averages over the targets that count: padding is ignored, classes have
weights. Such means from several workers are combined by their denominators. The sum of such a mean and another term
cannot be combined.
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
from paceline.torch_private import old_reduction


class Averages:
    """The averages taken by the current sliced call. `watching` is on inside sliced calls."""

    def __init__(self) -> None:
        self.watching = False
        self._combines = False  # the averages of parts of the call
        self._taken: list[tuple[torch.Tensor, torch.Tensor]] = []  # value, divisor
        self._counted: list[torch.Tensor] = []  # per average, which targets count

    def begin(self) -> None:
        self.watching, self._taken, self._counted, self._combines = True, [], [], False

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

    @property
    def count(self) -> int:
        return len(self._taken)

    def all_count(self) -> bool:
        """Whether every average is one over all targets, each counted once: then it is a mean over rows. False if none
        was seen: a compiled loss, or one that is not torch.nn.functional's."""
        # Waits for a GPU, in such models only.
        return bool(self._counted) and all(bool(counted.all()) for counted in self._counted)

    def watch(self, plain: Callable[..., Any], default_ignored: int = -100) -> Callable[..., Any]:
        """Wraps a loss function of torch so that its denominator is noted."""
        names = tuple(inspect.signature(plain).parameters)

        @functools.wraps(plain)
        def loss(*args: Any, **kwargs: Any) -> Any:
            value = plain(*args, **kwargs)
            if self.watching and not torch.compiler.is_compiling():
                note(value, dict(zip(names, args, strict=False)) | kwargs)
            return value

        def note(value: torch.Tensor, given: dict[str, Any]) -> None:
            target, weight, reduction = given["target"], given.get("weight"), given.get("reduction", "mean")
            if (old := (given.get("size_average"), given.get("reduce"))) != (None, None):
                reduction = old_reduction(*old)
            if reduction == "mean" and not target.is_floating_point():
                with hidden():
                    counted = target != given.get("ignore_index", default_ignored)
                    divisor = counted.sum() if weight is None else weight[target[counted]].sum()
                    self._taken.append((value, divisor.to(torch.float64)))
                self._counted.append(counted if weight is None else torch.zeros(1, dtype=torch.bool, device="cpu"))

        return loss

    def find(self) -> Callable[[], None]:
        """Wraps torch's losses; returns a function that removes the wrappers."""
        return all_of([patch(F, name, self.watch(getattr(F, name))) for name in ("cross_entropy", "nll_loss")])
