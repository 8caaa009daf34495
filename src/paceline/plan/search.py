"""Searches workers × strategy × batch × algorithm × bucket size for a goal, and the batch at which more workers stop
helping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from paceline.plan.fabric import ALGORITHMS
from paceline.plan.step import MICRO, Model, Predicted, Setup
from paceline.plan.workload import Workload

Goal = Literal["time", "cost", "efficiency"]
BUCKETS = tuple(size << 20 for size in (1, 4, 25, 64, 256))
BEST = 10
WORTH = 0.5  # efficiency below which more workers are no gain for the goal `efficiency`
KNEE = 0.05  # the knee: the smallest batch within this of the shortest time


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Time and price to an accuracy: samples/s × statistical efficiency. At batch B a script needs 1 + B/critical times
    the samples of a very small batch. `samples`: those at batch `seen`; 0: unknown, then times are relative."""

    critical: float
    samples: float = 0.0
    seen: float = 1.0

    @classmethod
    def of(cls, work: Workload) -> Progress | None:
        if not work.critical:
            return None
        return cls(critical=work.critical, samples=work.samples_seen, seen=work.batch)

    def needed(self, batch: float) -> float:
        """Samples at this batch."""
        return (self.samples or 1.0) * (1 + batch / self.critical) / (1 + self.seen / self.critical)

    def judged(self, one: Predicted) -> Predicted:
        """With the time and the price to the accuracy, as far as they are known."""
        one.relative_time = self.needed(one.batch) / one.samples_per_s
        if not self.samples:
            return one
        one.seconds_to_accuracy = one.relative_time
        if one.price_per_hour:
            one.cost_to_accuracy = one.seconds_to_accuracy * one.price_per_hour / 3600
        return one


class Found(msgspec.Struct, kw_only=True):
    """The best setups for a goal. `tried`: number of setups that were predicted."""

    goal: Goal
    best: list[Predicted]
    tried: int
    fits: bool = True  # False: none is known to fit into memory, and these need the least


def setups(model: Model, *, largest: int, batches: Sequence[float], speed: float) -> Iterator[Setup]:
    """Every setup worth a prediction, up to `largest` workers."""
    work, cluster = model.workload, model.fabric.cluster
    numbers = _numbers(largest, cluster.slots)
    for workers in numbers:
        for batch in batches:
            if batch < workers:
                continue
            common = {"workers": workers, "batch": batch, "base": work.batch, "speed": speed}
            if workers == 1:
                yield Setup(**common)  # type: ignore[arg-type]
                continue
            for algorithm in ALGORITHMS if workers <= cluster.slots else ALGORITHMS[:3]:
                for bucket in BUCKETS:
                    yield Setup(**common, algorithm=algorithm, bucket=bucket)  # type: ignore[arg-type]
            for bucket in BUCKETS:
                yield Setup(**common, strategy="sharded", bucket=bucket)  # type: ignore[arg-type]
            for strategy in ("central", "server") if workers <= cluster.slots else ("server",):  # central: one host
                yield Setup(**common, strategy=strategy)  # type: ignore[arg-type]
            for copy in (2, 4, 8, 16) if work.cut else ():
                if workers % copy or copy > max(work.blocks, 1):
                    continue
                for micro in (MICRO, 8, 32):
                    if batch / (workers / copy) >= micro:
                        yield Setup(**common, strategy="pipeline", model=copy, micro=micro)  # type: ignore[arg-type]
                if copy <= cluster.slots:
                    yield Setup(**common, strategy="mesh", model=copy)  # type: ignore[arg-type]


def _numbers(largest: int, slots: int) -> list[int]:
    """1, 2, 4 … and whole hosts, and the largest."""
    found = {1, largest}
    number = 1
    while number < largest:
        found |= {number, min(-(-number // slots) * slots, largest)}
        number *= 2
    return sorted(found)


def batches(work: Workload, largest: int) -> list[float]:
    """From an eighth of the script's batch, by doublings up to the rows measured on one worker times the workers."""
    most = max(work.points[-1].rows, work.batch) * largest
    found = [max(work.batch / 8, 1.0)]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def search(
    model: Model, *, goal: Goal, largest: int, budget: float = 0.0, speed: float = 1.0, strong: bool = False
) -> Found:
    """The ten best setups. `budget`: dollars for the goal `time`; a setup that is known to cost more is left out.
    `strong`: only the script's batch, which is all that can be compared without a noise scale."""
    progress = Progress.of(model.workload)
    sizes = [float(model.workload.batch)] if strong or progress is None else batches(model.workload, largest)
    tried = 0
    fits: dict[tuple[object, ...], tuple[float, Setup]] = {}
    too_large: dict[tuple[object, ...], tuple[float, Setup]] = {}
    for setup in setups(model, largest=largest, batches=sizes, speed=speed):
        one = model.predict(setup, words=False)
        tried += 1
        if progress is not None:
            progress.judged(one)
        if budget and (one.cost_to_accuracy is None or one.cost_to_accuracy > budget):
            continue
        worth = _worth(one, goal)
        into = too_large if one.fits is False else fits
        key = (one.workers, one.strategy, one.batch)  # of the algorithms and buckets, the best only
        if key not in into or worth < into[key][0]:
            into[key] = (worth, setup)
    chosen = sorted((fits or too_large).values(), key=lambda each: (each[0], each[1].workers))[:BEST]
    best = [model.predict(setup) for _, setup in chosen]
    for one in best if progress is not None else ():
        progress.judged(one)  # type: ignore[union-attr]
    least = min((one.relative_time for one in best if one.relative_time), default=1.0)
    for one in best:
        one.relative_time = None if one.relative_time is None else one.relative_time / least
    return Found(goal=goal, best=best, tried=tried, fits=bool(fits) or not too_large)


def _worth(one: Predicted, goal: Goal) -> float:
    """Smaller is better."""
    seconds = one.relative_time or 1 / one.samples_per_s
    if goal == "time":
        return seconds
    if goal == "cost":
        return seconds * (one.price_per_hour or one.workers)
    return -one.workers if one.efficiency >= WORTH else 1 - one.efficiency


class Knee(msgspec.Struct, kw_only=True):
    """Time to accuracy by batch on so many workers. `knee`: beyond it, larger batches gain less than 5 %."""

    workers: int
    batches: list[float]
    seconds: list[float]
    knee: float
    relative: bool  # seconds are relative to the shortest


def knee(model: Model, workers: int, *, speed: float) -> Knee | None:
    """None without a noise scale."""
    progress = Progress.of(model.workload)
    if progress is None:
        return None
    sizes = [size for size in batches(model.workload, workers) if size >= workers] or [float(workers)]
    took = [progress.judged(model.predict(Setup(workers=workers, batch=b, speed=speed))) for b in sizes]
    seconds = [one.relative_time or 0.0 for one in took]
    least = min(seconds)
    at = next(size for size, each in zip(sizes, seconds, strict=True) if each <= least * (1 + KNEE))
    relative = not progress.samples
    return Knee(
        workers=workers,
        batches=sizes,
        seconds=[each / least for each in seconds] if relative else seconds,
        knee=at,
        relative=relative,
    )
