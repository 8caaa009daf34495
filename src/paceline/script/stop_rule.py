"""When a trial has measured enough: so many seconds of steps after the warm-up, whatever that takes.

All workers must stop at the same step, and each has times of its own: rank 0's count. It is asked at steps 8, 12, 16,
24, 32, 48, … only, so that it costs nothing in between.
"""

from __future__ import annotations

from statistics import median

import torch

from paceline.comm.group import Group
from paceline.record.settling import settle

FIRST_LOOK = 8
FEWEST = 10  # settled steps
MANY = 100  # steps, among which those of the warm-up are few
PATIENCE = 3  # times what was wanted, after which steps that are not steady are taken as they are


class Enough:
    """Of one worker. Tell it each step's seconds, without evaluation; ask it after each step."""

    def __init__(self, seconds: float) -> None:
        self._wanted = seconds
        self._seconds: list[float] = []
        self._look = FIRST_LOOK

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def is_time_to_look(self, step: int) -> bool:
        return step >= self._look

    def is_reached(self, group: Group) -> bool:
        """Every worker asks at the same steps; waits for all of them, and gives rank 0's answer to all."""
        # A power of two, or three times one: up by a half or by a third.
        self._look = self._look * 3 // 2 if self._look.bit_count() == 1 else self._look * 4 // 3
        answer = torch.tensor([self._measured()], dtype=torch.uint8)
        group.broadcast(answer, "whether enough was measured")
        return bool(answer.item())

    def _measured(self) -> bool:
        warm_up = settle(self._seconds)
        later = self._seconds[len(self._seconds) // 3 if warm_up is None else warm_up :]
        if len(later) < FEWEST:
            return False
        # By the median: a late compilation is no measurement, however long it takes. Steps that never settle are taken
        # as they are in the end.
        if median(later) * len(later) >= self._wanted * (PATIENCE if warm_up is None else 1):
            return True
        # On a machine that is never quiet most steps are fast and many are not: the usual one says little of the time
        # that passes. Again without the few that may have compiled.
        return len(later) >= MANY and sum(sorted(later)[: -len(later) // 10]) >= PATIENCE * self._wanted
