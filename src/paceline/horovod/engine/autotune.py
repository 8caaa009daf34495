"""HOROVOD_AUTOTUNE: tries fusion thresholds, then cycle times, and keeps those with which most bytes are reduced.

Rank 0 measures the bytes per second of the script as it runs, compute included, in windows of at least 0.3 s and ten
verdicts. The first window of a candidate is not counted. The score is the median of the next three, so one disturbed
window does not decide. Every rank gets the new values with a response, so that all fuse alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from paceline.horovod.engine.messages import Response
from paceline.settings import HorovodSettings

THRESHOLDS = tuple(size << 20 for size in (1, 4, 16, 64, 128))  # bytes
CYCLES = (0.0005, 0.001, 0.0025, 0.005, 0.01)  # seconds
SECONDS, VERDICTS, WINDOWS = 0.3, 10, 3


class Choice(NamedTuple):
    fusion_threshold: int
    cycle_time: float


class Autotuner:
    """Used by rank 0's background thread. `observe` what was reduced, and `apply` the choice to verdicts."""

    def __init__(self, settings: HorovodSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._log = clock, settings.autotune_log
        first = Choice(settings.fusion_threshold, settings.cycle_time)
        self.choice: Choice = first  # in use
        self._told: Choice | None = None
        self._scores: dict[Choice, float] = {}
        self._todo = [first, *(first._replace(fusion_threshold=size) for size in THRESHOLDS)]
        self._rounds = 0  # of candidates that were begun: thresholds, then cycles
        self.is_done = False
        self._rates: list[float] = []
        self._bytes = self._verdicts = 0
        self._began = clock()
        self._next()

    def observe(self, reduced: int) -> None:
        """The bytes of one response's operations."""
        if self.is_done or not reduced:
            return
        self._bytes, self._verdicts = self._bytes + reduced, self._verdicts + 1
        seconds = self._clock() - self._began
        if self._verdicts < VERDICTS or seconds < SECONDS:
            return
        self._rates.append(self._bytes / seconds)
        self._begin_window()
        if len(self._rates) > WINDOWS:
            self._scores[self.choice] = score = statistics.median(self._rates[1:])
            self._write(f"{self.choice.fusion_threshold / 2**20:g},{self.choice.cycle_time * 1000:g},{score:.6g}")
            self._next()

    def apply(self, response: Response) -> Response:
        """The response, with the choice if the ranks do not know it."""
        if self._told == self.choice:
            return response
        self._told = self.choice
        fields = {name: getattr(response, name) for name in Response.__struct_fields__}
        return Response(**fields | self.choice._asdict())

    def _next(self) -> None:
        self._todo = [choice for choice in dict.fromkeys(self._todo) if choice not in self._scores]
        if not self._todo:
            best = max(self._scores, key=lambda choice: self._scores[choice])
            self._rounds += 1
            self._todo = [best._replace(cycle_time=cycle) for cycle in CYCLES if cycle != best.cycle_time]
            if self._rounds > 1:
                self.choice, self.is_done = best, True
                self._write(f"# best: {best.fusion_threshold / 2**20:g} MB, {best.cycle_time * 1000:g} ms")
                return
        self.choice = self._todo.pop(0)
        self._rates = []
        self._begin_window()

    def _begin_window(self) -> None:
        self._bytes = self._verdicts = 0
        self._began = self._clock()

    def _write(self, line: str) -> None:
        if self._log:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(line + "\n")
