"""Learns how many backwards a step has, so that accumulated gradients are summed over the workers once per step.

A gradient that is kept back is still this worker's own. A reader (the optimizer, clipping, a print) must get the global
one, so reading `.grad` sums the gradients first: all workers run the same lines, and read at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.torch_private import plain_grad

LEARNT = 2  # equal steps in a row


class Accumulation:
    """The pattern of one script: the backwards between steps, by call site."""

    def __init__(self, bring_up_to_date: Callable[[], None]) -> None:
        self.kept_back = False  # some gradients are not global yet
        self._sum_kept_back = bring_up_to_date
        self._sites: list[int] = []  # of the backwards since the last step
        self._before: list[int] = []  # … between the two steps before
        self._alike = 0  # steps in a row that had the same backwards
        self._guarded = False
        self.never = False  # every backward sends its gradients

    def may_keep_back(self, site: int) -> bool:
        """At the start of a backward: whether another one from the same line is expected before the step."""
        at = len(self._sites)
        self._sites.append(site)
        due = not self.never and self._alike >= LEARNT and self._before[at : at + 2] == [site, site]
        if due and not self._guarded:
            self._guarded = True
            _guard_grad(self)
        self.kept_back = due
        return due

    def stepped(self) -> None:
        """Notes that an optimizer has stepped."""
        self._alike = self._alike + 1 if self._sites == self._before else 0
        self._before, self._sites = self._sites, []

    def look(self) -> None:
        """Sums the gradients that were kept back, because they are about to be read."""
        if self.kept_back:
            self.kept_back = False
            self._sum_kept_back()


def _guard_grad(accumulation: Accumulation) -> None:
    """From now on reading a tensor's `.grad` in Python first sums gradients that were kept back."""

    def read(tensor: torch.Tensor) -> torch.Tensor | None:
        if accumulation.kept_back and tensor.is_leaf:
            accumulation.look()
        return plain_grad.__get__(tensor)

    torch.Tensor.grad = property(read, plain_grad.__set__, plain_grad.__delete__)  # type: ignore[assignment]
