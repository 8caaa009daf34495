"""Tunes the bucket size and the all-reduce algorithm in the first steps of a run.

The tuner uses each candidate for a few steps, one candidate after the other, in two rounds. The tuner keeps a candidate
other than the default only if the candidate was faster in both rounds, by more than noise. The overhead is limited to
the trial steps, some dozens. If workers hardly wait for gradients, the tuner tries nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from paceline.comm.buckets import SIZE, Buckets, Mark, Waits, mark, seconds_between
from paceline.comm.group import Group

WARM_UP = 10  # steps in which torch chooses kernels, buckets are built and the view is decided
BLOCK = 5  # steps per candidate and round; the first step rebuilds the buckets and does not count
ROUNDS = 2
GAIN = 0.03  # fraction of a step time: a smaller gain may be noise
WORTH = 0.03  # fraction of a step spent waiting for gradients: below this there is nothing to gain
SMALL = 4 << 20  # bytes of gradients that fit into a few buckets at any bucket size


@dataclass(frozen=True, slots=True)
class Way:
    """One candidate: a bucket size and an all-reduce algorithm."""

    bucket_bytes: int = SIZE
    algorithm: str | None = None  # between hosts; None: chosen by message size and the measured costs of the link


@dataclass(slots=True)
class BucketVerdict:
    """The candidates tried, and the candidate kept."""

    chosen: Way
    why: str
    seconds: list[tuple[Way, list[float]]]  # step time of the slowest worker, per candidate and round

    def told(self) -> dict[str, Any]:
        return {
            "chosen": asdict(self.chosen),
            "why": self.why,
            "tried": [{**asdict(way), "seconds": seconds} for way, seconds in self.seconds],
        }


class BucketTuner:
    """The tuner of one worker. Every worker calls `step` after every optimizer step; at the end of each block `step`
    waits for all workers."""

    def __init__(self, group: Group, buckets: Buckets, clock: Callable[[], Mark] = mark) -> None:
        self.verdict: BucketVerdict | None = None
        self._group, self._buckets, self._clock = group, buckets, clock
        self._ways = [Way(), Way(SIZE // 6), Way(4 * SIZE), *(Way(SIZE, name) for name in group.algorithms)]
        self._steps, self._marks = 0, [clock()]
        buckets.waits = Waits(clock)
        self._plan: list[int] = []  # indices of the candidates still to try
        self._measured: dict[int, list[float]] = {index: [] for index in range(len(self._ways))}

    def step(self) -> None:
        """Counts one finished optimizer step."""
        if self.verdict is not None:
            return
        self._marks.append(self._clock())
        self._steps += 1
        if self._steps < WARM_UP:
            return
        if self._steps == WARM_UP or len(self._marks) > BLOCK:
            with self._group.watch.checking():  # no part of the step
                self._begin() if self._steps == WARM_UP else self._end_block()

    def _begin(self) -> None:
        assert self._buckets.waits is not None
        step, waited = median(seconds_between(self._marks)[2:]), self._buckets.waits.seconds() / self._steps
        self._buckets.waits = None
        size = sum(bucket.flat.nbytes for bucket in self._buckets.all())
        # The shortest wait of all workers is the cost of communication; the other workers also waited for a slow peer.
        facts = torch.tensor([step, waited, float(size)], dtype=torch.float64, device="cpu")
        table = self._group.gather_vectors(facts, "the cost of a step")
        step, waited, size = float(table[:, 0].max()), float(table[:, 1].min()), int(table[:, 2].max())
        if size <= SMALL:
            self._settle(0, f"gradients are {size / 1e6:.1f} MB: too little for the bucket size to matter")
        elif waited < WORTH * step:
            self._settle(0, f"workers wait {waited / step:.1%} of a step for gradients: there is nothing to gain")
        else:
            self._plan = [*range(len(self._ways))] * ROUNDS
            self._use(self._plan[0])

    def _end_block(self) -> None:
        mine = torch.tensor([median(seconds_between(self._marks)[1:])], dtype=torch.float64, device="cpu")
        slowest = float(self._group.gather_vectors(mine, "the step times of all workers").max())
        self._measured[self._plan.pop(0)].append(slowest)
        if self._plan:
            self._use(self._plan[0])
            return
        default, *others = self._measured.values()
        gains = [min(d / o for d, o in zip(default, other, strict=True)) for other in others]
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] > 1 + GAIN:
            self._settle(best + 1, f"at least {gains[best]:.2f} × as fast as the default in both rounds")
        else:
            self._settle(0, "no other bucket size or algorithm was faster in both rounds")

    def _use(self, index: int) -> None:
        way = self._ways[index]
        self._buckets.resize(way.bucket_bytes)
        self._group.use_algorithm(way.algorithm)
        self._marks = [self._clock()]

    def _settle(self, index: int, why: str) -> None:
        if any(self._measured.values()):
            self._use(index)
        tried = [(self._ways[i], seconds) for i, seconds in self._measured.items() if seconds]
        self.verdict = BucketVerdict(self._ways[index], why, tried)
        if index:
            way = self._ways[index]
            how = f"{way.bucket_bytes / 1e6:.0f} MB" + (f", algorithm {way.algorithm}" if way.algorithm else "")
            self._group.pulse.notice(f"Gradient bucket size tuned to {how}: {why}. (--no-autotune keeps the default.)")
