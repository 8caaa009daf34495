"""Decides when a trial has measured enough: a number of seconds of steps after the warm-up.

All workers must stop at the same step, but their times differ: rank 0 decides. The workers ask only at steps 8, 12,
16, 24, 32, 48, …, so that the steps in between cost nothing.
"""

from __future__ import annotations

from statistics import median

import torch

from paceline.comm.group import Group
from paceline.record.settling import settle

FIRST_LOOK = 8
FEWEST = 10  # steps after the warm-up
MANY = 100  # steps: with this many, only a small part belongs to the warm-up
PATIENCE = 3  # times the wanted seconds, after which unsteady steps are accepted


class Enough:
    """The stop rule of one worker. `add` each step's seconds without evaluation, then ask `is_reached`."""

    def __init__(self, seconds: float) -> None:
        self._wanted = seconds
        self._seconds: list[float] = []
        self._look = FIRST_LOOK

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def is_time_to_look(self, step: int) -> bool:
        return step >= self._look

    def is_reached(self, group: Group) -> bool:
        """Every worker asks at the same steps; waits for all workers, and returns rank 0's answer."""
        # Numbers 2^k and 3·2^k: the next one is a half or a third larger.
        self._look = self._look * 3 // 2 if self._look.bit_count() == 1 else self._look * 4 // 3
        answer = torch.tensor([self._measured()], dtype=torch.uint8, device="cpu")
        group.broadcast(answer, "whether enough was measured")
        return bool(answer.item())

    def _measured(self) -> bool:
        warm_up = settle(self._seconds)
        later = self._seconds[len(self._seconds) // 3 if warm_up is None else warm_up :]
        if len(later) < FEWEST:
            return False
        # The median, because one late compilation is not a measurement, however long it takes. Steps that never become
        # steady are accepted after PATIENCE times the wanted seconds.
        if median(later) * len(later) >= self._wanted * (PATIENCE if warm_up is None else 1):
            return True
        # On a noisy machine most steps are fast and many are slow: the median underestimates the time that passes.
        # Here the sum counts, without the slowest tenth of the steps, which may have compiled.
        return len(later) >= MANY and sum(sorted(later)[: -len(later) // 10]) >= PATIENCE * self._wanted
