"""Throughput against batch size: doubling up to a ceiling, then closing in on the knee.

The batch is doubled until it no longer fits, until two doublings in a row have gained nothing much (unless the end is
asked for), or until the data, the script or what was asked ends it. The knee is the smallest batch within 5 % of the
best; between it and the next smaller one it is bisected. Those that come near the best are then measured again, in
rounds, so that a moment's disturbance does not pick the knee. Where memory was the ceiling, that is bisected first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median

import msgspec

from paceline.trials.core.bench import Bench, Budget, details
from paceline.trials.core.result import Measured, Status

CLOSE = 0.05  # the knee is so close to the best; a doubling that gains less is flat
CONTENDS = 0.1  # batches so close to the best are measured again
FLAT = 2  # doublings in a row
FINE = 8  # bisecting ends at this part of the batch
MOST_TRIALS = 8  # that bisecting may take
SHORT = 0.9  # of the batch that was asked for: the data set has no more


class Ceiling(StrEnum):
    """Why a sweep went no further: how its last trial ended, or what else ended it."""

    MEMORY = Status.MEMORY
    UNSUPPORTED = Status.UNSUPPORTED
    TOO_SHORT = Status.TOO_SHORT
    NOT_FINITE = Status.NOT_FINITE
    FAILED = Status.FAILED
    BUDGET = Status.BUDGET
    FLAT = "flat"  # doublings gained nothing
    DATA = "data"  # the data set has no more
    TO = "to"  # --to
    NONE = ""  # it was interrupted

    @property
    def broken(self) -> bool:
        """The script itself failed."""
        return self in (Ceiling.FAILED, Ceiling.NOT_FINITE)


Measure = Callable[[int | None, int], Measured]  # samples a step (None: the script's own), round


class Point(msgspec.Struct, kw_only=True):
    """One batch. `batch` is samples a step; `memory` the peak of the worker that took most."""

    batch: int
    fits: bool
    status: Status = Status.OK
    samples_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    memory: int = 0
    step: dict[str, float] = {}
    rounds: int = 0
    message: str = ""  # why it does not fit


class Verdict(msgspec.Struct, kw_only=True):
    """What the trials showed. `largest` is the largest batch that fitted."""

    workers: int
    mods: list[str]
    own: int | None  # the script's own batch; None where it was not measured
    points: list[Point]
    knee: int | None
    best: int | None
    largest: int | None
    ceiling: Ceiling  # why it went no further; empty: it was interrupted
    why: str
    keep: str = ""  # the mod that sets the knee's batch
    details: str = ""  # what the script said when it failed
    failed: str = ""  # the record of the trial that ended it
    unfinished: bool = False  # the budget was spent before the knee was closed in on, and measured again
    interrupted: bool = False


class Sweep:
    """One sweep: `run` it, then `judge` it, also after an interrupt."""

    def __init__(
        self,
        measure: Measure,
        budget: Budget,
        *,
        start: int | None,
        to: int | None,
        repeat: int,
        to_the_end: bool = False,
    ) -> None:
        self._measure, self._budget = measure, budget
        self._start, self._to, self._repeat, self._to_the_end = start, to, repeat, to_the_end
        self.trials: dict[int, list[Measured]] = {}  # that ended well, by samples a step
        self.lost: dict[int, Measured] = {}  # … and that did not, by what was asked for
        self.own: int | None = None
        self.ceiling = Ceiling.NONE
        self.why = ""
        self.last: Measured | None = None  # that ended it
        self.unfinished = False

    def run(self) -> None:
        self._double()
        if not self.trials:
            return
        if self.ceiling is Ceiling.MEMORY:
            self._close_in_on_the_ceiling()
        self._close_in_on_the_knee()
        self._measure_again()
        self._close_in_on_the_knee()  # which the rounds may have moved

    @property
    def speeds(self) -> dict[int, float]:
        return {size: median(m.samples_per_s for m in trials) for size, trials in sorted(self.trials.items())}

    # -- the walk --------------------------------------------------------------------------------------------------

    def _double(self) -> None:
        latest = self._measure(self._start, 1)
        if not latest.ok:
            self.lost[self._start or 0] = latest
            self._end(latest)
            return
        size = latest.batch
        self.trials[size] = [latest]
        self.own = size if self._start is None else None
        asked = self._start or size
        while not self._is_short(latest, asked) and not self._is_flat():
            if self._to is not None and size >= self._to:
                self.ceiling, self.why = Ceiling.TO, f"{self._to:,} samples a step were the most that was asked for"
                return
            asked = 2 * size if self._to is None else min(2 * size, self._to)
            if not self._budget.affords(2 * latest.seconds):
                self.ceiling, self.why = Ceiling.BUDGET, f"the budget did not allow a trial of {asked:,} samples a step"
                return
            latest, size = self._try(asked), asked
            if not latest.ok:
                self._end(latest)
                return

    def _close_in_on_the_knee(self) -> None:
        for _ in range(MOST_TRIALS):
            speeds = self.speeds
            knee = find_knee(speeds)
            below = max((size for size in speeds if size < knee), default=knee)
            if not self._bisect(below, knee):
                return

    def _close_in_on_the_ceiling(self) -> None:
        for _ in range(MOST_TRIALS):
            if not self._bisect(max(self.trials), min(self.lost)):
                return

    def _measure_again(self) -> None:
        for round in range(2, self._repeat + 1):
            speeds = self.speeds
            best = max(speeds.values())
            for size in [size for size, speed in speeds.items() if speed >= (1 - CONTENDS) * best]:
                if not self._affords(self.trials[size][0].seconds):
                    return
                measured = self._measure(size, round)
                if measured.ok:
                    self.trials[size].append(measured)

    def _bisect(self, low: int, high: int) -> bool:
        """Measures the middle, where that tells more. Says whether it did."""
        if high - low <= max(1, high // FINE) or not self._affords(1.5 * self.trials[low][0].seconds):
            return False
        known = len(self.trials) + len(self.lost)
        self._try((low + high) // 2)
        return len(self.trials) + len(self.lost) > known

    def _affords(self, seconds: float) -> bool:
        self.unfinished = self.unfinished or not self._budget.affords(seconds)
        return not self.unfinished

    def _try(self, size: int) -> Measured:
        measured = self._measure(size, 1)
        if measured.ok:
            self.trials.setdefault(measured.batch, []).append(measured)
        elif not self._budget.over:
            self.lost[size] = measured
        return measured

    # -- where it ends ---------------------------------------------------------------------------------------------

    def _is_flat(self) -> bool:
        if self._to_the_end:
            return False
        speeds = list(self.speeds.values())
        latest = list(pairwise(speeds))[-FLAT:]
        if len(latest) < FLAT or any(after > (1 + CLOSE) * before for before, after in latest):
            return False
        self.ceiling, self.why = Ceiling.FLAT, f"{FLAT} doublings in a row gained less than {CLOSE:.0%}"
        return True

    def _is_short(self, measured: Measured, asked: int) -> bool:
        if measured.batch >= SHORT * asked:
            return False
        self.ceiling = Ceiling.DATA
        self.why = f"{asked:,} samples a step were asked for, and the script's data set gave {measured.batch:,}"
        return True

    def _end(self, measured: Measured) -> None:
        self.why, self.last = measured.message, measured
        over = self._budget.over and measured.status.broken
        self.ceiling = Ceiling.BUDGET if over else Ceiling(measured.status)


def find_knee(speeds: dict[int, float]) -> int:
    """The smallest batch within 5 % of the best."""
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed >= (1 - CLOSE) * best)


def judge(
    sweep: Sweep,
    *,
    workers: int,
    mods: Sequence[str],
    ask: Callable[[int], str] = str,
    interrupted: bool = False,
) -> Verdict:
    """The verdict on what was measured, be it all or the part before an interrupt. `ask` is how a size is asked for."""
    speeds = sweep.speeds
    points = [_point(sweep.trials[size]) for size in speeds]
    points += [
        Point(batch=size, fits=False, status=m.status, message=m.message)
        for size, m in sorted(sweep.lost.items())
        if size
    ]
    knee = find_knee(speeds) if speeds else None
    return Verdict(
        workers=workers,
        mods=list(mods),
        own=sweep.own,
        points=points,
        knee=knee,
        best=max(speeds, key=lambda size: speeds[size], default=None),
        largest=max(speeds, default=None),
        ceiling=sweep.ceiling,
        why=sweep.why,
        keep=f"batch={ask(knee)}" if knee is not None and knee != sweep.own else "",
        details=details(sweep.last) if sweep.last is not None and sweep.ceiling.broken else "",
        failed=sweep.last.record if sweep.last is not None else "",
        unfinished=sweep.unfinished,
        interrupted=interrupted,
    )


class OnBench:
    """Measures on a real bench, by the mod `batch`, with the learning rate as it is.

    A script that sums the gradients of several batches takes more samples at a step than its loader gives at a time. So
    after the first trial sizes are asked for in proportion to what that one took.
    """

    def __init__(self, bench: Bench, start: int | None) -> None:
        self._bench, self._start = bench, start
        self._first: Measured | None = None

    def __call__(self, size: int | None, round: int) -> Measured:
        if size is None or self._first is None:
            self._first = self._take("x1" if self._start is None else str(self._start), round)
            return self._first
        return self._take(self.value(size), round)

    def value(self, size: int) -> str:
        """What the mod is asked for, after the first trial."""
        assert self._first is not None
        times = size / self._first.batch
        if self._start is None:
            return "x" + f"{times:.6f}".rstrip("0").rstrip(".")
        return str(max(1, int(self._start * times + 0.5)))

    def _take(self, value: str, round: int) -> Measured:
        return self._bench.measure(f"batch={value}.r{round}", mods=(*self._bench.settings.mods, f"batch={value}:none"))


def _point(trials: Sequence[Measured]) -> Point:
    middle = sorted(trials, key=lambda m: m.samples_per_s)[len(trials) // 2]
    return Point(
        batch=trials[0].batch,
        fits=True,
        samples_per_s=median(m.samples_per_s for m in trials),
        low=min(m.low for m in trials),
        high=max(m.high for m in trials),
        memory=max(m.memory for m in trials),
        step=middle.step,
        rounds=len(trials),
    )
