"""Tries bucket sizes and algorithms in the first steps of a run, and keeps what is faster.

Each way is taken for a few steps, all ways in turn, twice. Another way than the default is kept only if it was faster
both times and by more than chance: a run is never slower for having tried, but for the trying itself, which lasts some
dozens of steps. Nothing is tried where gradients are hardly waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from paceline.comm.buckets import SIZE, Buckets
from paceline.comm.group import Group

WARM_UP = 10  # steps: kernels are chosen, buckets laid, the view decided
BLOCK = 5  # steps that one way is taken at a time; the first of them lays the buckets anew and does not count
ROUNDS = 2
GAIN = 0.03  # of a step: less is chance
WORTH = 0.03  # of a step spent waiting for gradients: where it is less there is nothing to gain
SMALL = 4 << 20  # bytes of gradients: they fit a few buckets, whatever the size


@dataclass(frozen=True, slots=True)
class Way:
    """How gradients are sent."""

    bucket_bytes: int = SIZE
    algorithm: str | None = None  # between hosts; None: chosen by size from what the link was measured to do


@dataclass(slots=True)
class Verdict:
    """What was tried, and what is kept."""

    chosen: Way
    why: str
    seconds: list[tuple[Way, list[float]]]  # of a step, the slowest worker's, by way and round

    def told(self) -> dict[str, Any]:
        return {
            "chosen": asdict(self.chosen),
            "why": self.why,
            "tried": [{**asdict(way), "seconds": seconds} for way, seconds in self.seconds],
        }


class Tuner:
    """Of one worker. `step` after every optimizer step, on every worker; waits for all of them at the end of each
    block."""

    def __init__(self, group: Group, buckets: Buckets, clock: Callable[[], float] = time.perf_counter) -> None:
        self.verdict: Verdict | None = None
        self._group, self._buckets, self._clock = group, buckets, clock
        self._ways = [Way(), Way(SIZE // 6), Way(4 * SIZE), *(Way(SIZE, name) for name in group.algorithms)]
        self._steps, self._times = 0, list[float]()
        self._last = clock()
        self._plan: list[int] = []  # the ways still to be taken
        self._found: dict[int, list[float]] = {index: [] for index in range(len(self._ways))}

    def step(self) -> None:
        """An optimizer step is over."""
        if self.verdict is not None:
            return
        now = self._clock()
        self._times.append(now - self._last)
        self._last = now
        self._steps += 1
        if self._steps < WARM_UP:
            return
        if self._steps == WARM_UP:
            self._begin()
        elif len(self._times) == BLOCK:
            self._end_block()

    def _begin(self) -> None:
        step, waited = median(self._times[2:]), self._buckets.waited / self._steps
        size = sum(bucket.flat.nbytes for bucket in self._buckets.all())
        # The worker that waited least shows what sending costs; the others waited for it.
        facts = torch.tensor([step, waited, float(size)], dtype=torch.float64)
        table = self._group.gather_vectors(facts, "what a step costs")
        step, waited, size = float(table[:, 0].max()), float(table[:, 1].min()), int(table[:, 2].max())
        if size <= SMALL:
            self._settle(0, f"gradients are {size / 1e6:.1f} MB: too little for the size of buckets to matter")
        elif waited < WORTH * step:
            self._settle(0, f"workers wait {waited / step:.1%} of a step for gradients: there is nothing to gain")
        else:
            self._plan = [*range(len(self._ways))] * ROUNDS
            self._take(self._plan[0])

    def _end_block(self) -> None:
        mine = torch.tensor([median(self._times[1:])], dtype=torch.float64)
        slowest = float(self._group.gather_vectors(mine, "how long a step took").max())
        self._found[self._plan.pop(0)].append(slowest)
        if self._plan:
            self._take(self._plan[0])
            return
        default, *others = self._found.values()
        gains = [min(d / o for d, o in zip(default, other, strict=True)) for other in others]
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] > 1 + GAIN:
            self._settle(best + 1, f"{gains[best]:.2f} × as fast as the default, or more, both times")
        else:
            self._settle(0, "no other way was faster both times")

    def _take(self, index: int) -> None:
        way = self._ways[index]
        self._buckets.resize(way.bucket_bytes)
        self._group.use_algorithm(way.algorithm)
        self._times.clear()
        self._last = self._clock()

    def _settle(self, index: int, why: str) -> None:
        if any(self._found.values()):
            self._take(index)
        tried = [(self._ways[i], seconds) for i, seconds in self._found.items() if seconds]
        self.verdict = Verdict(self._ways[index], why, tried)
        if index:
            way = self._ways[index]
            how = f"buckets of {way.bucket_bytes / 1e6:.0f} MB" + (f", {way.algorithm}" if way.algorithm else "")
            self._group.pulse.notice(f"Gradients go in {how} from now on: {why}. (--no-autotune to leave them.)")
