"""The search of `sweep`: doubles the batch up to a ceiling, then bisects to find the knee.

The batch doubles until it no longer fits into memory, until two doublings in a row gain less than 5 % (unless
--to-the-end is given), or until the data, the script or --to ends the sweep. If memory is the ceiling, a bisection
first finds the largest batch that fits. The knee is the smallest batch within 5 % of the best; a bisection finds it
between two doublings. Batches near the best are then measured again in rounds, so that a brief disturbance does not
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median

import msgspec

from paceline.trials.core.bench import Bench, Budget, details
from paceline.trials.core.result import Measured, Status
from paceline.units import percent

CLOSE = 0.05  # the knee is within this fraction of the best; a doubling that gains less is flat
CONTENDS = 0.1  # batches within this fraction of the best are measured again
FLAT = 2  # flat doublings in a row that end the sweep
FINE = 8  # bisection ends at an interval of 1/8 of the batch
MOST_TRIALS = 8  # most trials of a bisection
UNSTEADY = 0.5  # relative difference between blocks of steps above which the machine is too busy to measure
SHORT = 0.9  # a batch below this fraction of the requested one: the dataset has no more samples


class Ceiling(StrEnum):
    """Why a sweep ended: the status of its last trial, or another reason."""

    MEMORY = Status.MEMORY
    UNSUPPORTED = Status.UNSUPPORTED
    TOO_SHORT = Status.TOO_SHORT
    NOT_FINITE = Status.NOT_FINITE
    FAILED = Status.FAILED
    BUDGET = Status.BUDGET
    FLAT = "flat"  # doublings gained nothing
    DATA = "data"  # the dataset has no larger batch
    TO = "to"  # --to was reached
    NONE = ""  # the sweep was interrupted

    @property
    def broken(self) -> bool:
        """The script itself failed."""
        return self in (Ceiling.FAILED, Ceiling.NOT_FINITE)


Measure = Callable[[int | None, int], Measured]  # samples a step (None: the script's own), round


class Point(msgspec.Struct, kw_only=True):
    """One batch. `batch`: samples per step. `memory`: peak bytes of the worker with the highest peak. `fits`: False
    only for memory; None if the batch could not be measured for another reason."""

    batch: int
    fits: bool | None
    status: Status = Status.OK
    samples_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    memory: int = 0
    step: dict[str, float] = {}
    rounds: int = 0
    message: str = ""  # why the batch was not measured


class Verdict(msgspec.Struct, kw_only=True):
    """The points, the knee, and why the sweep ended. `largest` is the largest batch that fits. The knee and the best
    are named only if their throughput differs from that of other batches by more than the measurements' spread."""

    workers: int
    mods: list[str]
    own: int | None  # the script's own batch; None if not measured
    points: list[Point]
    knee: int | None
    best: int | None
    tied: list[int] = []  # batches that no measurement tells apart from the fastest; empty if there is a best
    largest: int | None
    ceiling: Ceiling  # why the sweep ended
    why: str
    keep: str = ""  # the mod that sets the knee's batch
    details: str = ""  # the script's error, if it failed
    failed: str = ""  # the record of the trial that ended the sweep
    unfinished: bool = False  # the budget ended before the knee was bisected and measured again
    warning: str = ""  # the machine was too busy to measure
    interrupted: bool = False


class Sweep:
    """One sweep. Call `run`, then `judge`, also after an interrupt."""

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
        self.trials: dict[int, list[Measured]] = {}  # successful trials, by samples per step
        self.lost: dict[int, Measured] = {}  # failed trials, by requested samples per step
        self.own: int | None = None
        self.ceiling = Ceiling.NONE
        self.why = ""
        self.last: Measured | None = None  # the trial that ended the sweep
        self.unfinished = False

    def run(self) -> None:
        self._double()
        if not self.trials:
            return
        if self.ceiling is Ceiling.MEMORY:
            self._close_in_on_the_ceiling()
        self._close_in_on_the_knee()
        self._measure_again()
        self._close_in_on_the_knee()  # the repeated measurements may have moved the knee

    @property
    def speeds(self) -> dict[int, float]:
        return {size: median(m.samples_per_s for m in trials) for size, trials in sorted(self.trials.items())}

    # -- doubling and bisecting ------------------------------------------------------------------------------------

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
                self.ceiling, self.why = Ceiling.TO, f"--to {self._to:,} samples per step was reached"
                return
            asked = 2 * size if self._to is None else min(2 * size, self._to)
            if not self._budget.affords(2 * latest.seconds):
                self.ceiling = Ceiling.BUDGET
                self.why = f"the budget has no time for a trial of {asked:,} samples per step"
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
        """Measures the middle, if the interval is wide enough. Returns whether it did."""
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

    # -- reasons to end --------------------------------------------------------------------------------------------

    def _is_flat(self) -> bool:
        if self._to_the_end:
            return False
        speeds = list(self.speeds.values())
        latest = list(pairwise(speeds))[-FLAT:]
        if len(latest) < FLAT or any(after > (1 + CLOSE) * before for before, after in latest):
            return False
        self.ceiling, self.why = Ceiling.FLAT, f"{FLAT} doublings in a row gained less than {percent(CLOSE, digits=0)}"
        return True

    def _is_short(self, measured: Measured, asked: int) -> bool:
        if measured.batch >= SHORT * asked:
            return False
        self.ceiling = Ceiling.DATA
        self.why = f"the script's dataset gave {measured.batch:,} of {asked:,} samples per step"
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
    """The verdict on the trials so far, also after an interrupt. `ask` turns a batch size into the value of the mod."""
    speeds = sweep.speeds
    points = [_point(sweep.trials[size]) for size in speeds]
    points += [
        Point(batch=size, fits=False if m.status is Status.MEMORY else None, status=m.status, message=m.message)
        for size, m in sorted(sweep.lost.items())
        if size
    ]
    measured = points[: len(speeds)]
    tied = ties(measured)
    best = None if tied or len(measured) < 2 else max(speeds, key=lambda size: speeds[size], default=None)
    knee = named_knee(measured)
    return Verdict(
        workers=workers,
        mods=list(mods),
        own=sweep.own,
        points=points,
        knee=knee,
        best=best,
        tied=tied,
        largest=max(speeds, default=None),
        ceiling=sweep.ceiling,
        why=sweep.why,
        keep=f"batch={ask(knee)}" if knee is not None and knee != sweep.own else "",
        details=details(sweep.last) if sweep.last is not None and sweep.ceiling.broken else "",
        failed=sweep.last.record if sweep.last is not None else "",
        unfinished=sweep.unfinished,
        interrupted=interrupted,
        warning=unsteady(measured),
    )


def ties(points: Sequence[Point]) -> list[int]:
    """The fastest batch and those whose interval overlaps with its own; empty if there are none."""
    best = max(points, key=lambda point: point.samples_per_s, default=None)
    near = [point.batch for point in points if best is not None and point.high >= best.low]
    return near if len(near) > 1 else []


def named_knee(points: Sequence[Point]) -> int | None:
    """The smallest batch within 5 % of the best, if smaller batches, and all of half its size or less, are slower than
    the best beyond doubt: their intervals do not overlap with its own. None otherwise: the curve shows no knee. One
    batch is no curve."""
    if len(points) < 2:
        return None
    knee = find_knee({point.batch: point.samples_per_s for point in points})
    best = max(points, key=lambda point: point.samples_per_s)
    slower = [point.batch for point in points if point.batch < knee and point.high < best.low]
    if not slower or any(2 * p.batch <= knee and p.batch not in slower for p in points):
        return None
    return knee


def unsteady(points: Sequence[Point]) -> str:
    """A warning, if the steps of most batches differ widely among themselves."""
    spread = median([point.high / point.low - 1 for point in points if point.low > 0] or [0.0])
    if spread <= UNSTEADY:
        return ""
    return (
        f"Steps of one batch differ by {percent(spread, digits=0)}: other processes keep this machine busy. Measure "
        "again when the machine is idle, or with a larger --repeat."
    )


class OnBench:
    """Measures on a bench, with the mod `batch` and an unchanged learning rate.

    A script that accumulates gradients takes more samples per step than its loader's batch. So after the first trial,
    sizes are requested in proportion to the samples per step of that trial.
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
        """The value of the mod `batch` for this size, after the first trial."""
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
