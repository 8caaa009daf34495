"""The series of `converge`: accuracy of one worker, and of N emulated workers with each large-batch technique.

A technique is a set of mods; a trial runs the whole script from one seed, for the same number of epochs. All techniques
run from one seed before the next seed starts, so that a budget that ends early still leaves a full table. A NaN or
infinite loss is a result, not a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from paceline.errors import UsageError
from paceline.mods import catalog
from paceline.record.sharpness import RunSharpness

ALONE, NAIVE = "one worker", "naive"
TECHNIQUES = ("lr_scale", "warmup", "ghost_bn", "lars", "lamb", "auto")
GHOST = 32
WARM_UP = 6  # the learning rate warms up over 1/6 of all steps


class Trial(msgspec.Struct, kw_only=True):
    """One run of the script to its end."""

    accuracy: float | None  # the last accuracy; None: none was printed, or NaN
    curve: list[tuple[float | None, float | None]] = []  # seconds since the start, accuracy
    samples_per_s: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    diverged: int | None = None  # the first step whose loss is NaN or infinite
    trouble: str = ""  # why there is no result
    out_of_memory: bool = False
    unsupported: bool = False
    unfinished: bool = False  # the budget ended
    sharpness: RunSharpness | None = None  # only with --sharpness


class Spread(msgspec.Struct, kw_only=True):
    """Accuracies over seeds. A run that diverged without an accuracy counts as 0."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: int


class Sharp(msgspec.Struct, kw_only=True):
    """Sharpness of the solutions: means over the seeds for which it was measured."""

    eigenvalue: float | None  # the largest eigenvalue of the loss's Hessian
    settled: bool
    loss: float | None
    rise: float | None  # of the loss, with each weight tensor perturbed by `radius` of its norm
    radius: float
    line: list[tuple[float, float | None]]  # of the first seed: from the one-worker solution (0) to this solution (1)
    trouble: str = ""


class Row(msgspec.Struct, kw_only=True):
    """One row of the table. Epochs and seconds to the target are means over seeds; None if a seed missed the target."""

    workers: int
    technique: str
    mods: list[str]
    accuracy: Spread
    samples_per_s: float = 0.0
    diverged: int | None = None  # the earliest step at which a seed's loss was NaN or infinite
    steps: int = 0
    epochs_to_target: float | None = None  # accuracy readings until the target
    seconds_to_target: float | None = None
    curves: list[list[tuple[float | None, float | None]]] = []  # one per seed
    trouble: str = ""
    sharpness: Sharp | None = None

    def on_real_workers(self) -> list[str]:
        """The options of `run` for this technique on as many workers; empty if it has no mods."""
        mods = [mod for mod in self.mods if not mod.startswith(("emulate=", "accumulate="))]
        options = [word for mod in mods for word in ("--mod", mod)]
        return ["-n", str(self.workers), "--batch", "scale", *options] if options else []


class Verdict(msgspec.Struct, kw_only=True):
    """The table, and the chosen technique."""

    workers: int
    seeds: int
    target: float | None
    rows: list[Row]
    chosen: str | None  # the technique with the highest accuracy on N workers; None if several are equally good
    tied: list[str] = []  # the most accurate techniques, best mean first, if their seeds overlap
    unfinished: bool = False
    interrupted: bool = False

    @property
    def proven(self) -> bool:
        """Whether the chosen technique is the best one beyond the spread over seeds, and no worse than one worker."""
        rows = {row.technique: row.accuracy for row in self.rows}
        if self.chosen is None or self.seeds < 2 or self.chosen not in rows:
            return False
        best, alone = rows[self.chosen], rows.get(ALONE)
        if best.mean is None or best.high is None or alone is None or alone.mean is None or alone.low is None:
            return best.mean is not None
        return best.high >= alone.low


@dataclass(frozen=True, slots=True)
class Technique:
    """A name, and a function that gives the mods for N emulated workers and the number of steps of a run."""

    name: str
    mods: Callable[[int, int], tuple[str, ...]]  # workers, steps


def _of(*mods: str) -> Callable[[int, int], tuple[str, ...]]:
    return lambda workers, steps: tuple(
        mod.format(n=workers, steps=steps, warm=max(2, steps // WARM_UP)) for mod in mods
    )


_KNOWN = {
    "lr_scale": _of("lr_scale={n}"),
    "warmup": _of("lr_scale={n}", "warmup={warm}"),
    "ghost_bn": _of(f"ghost_bn={GHOST}"),
    "lars": _of("optimizer=lars", "warmup={warm}", "decay={steps}"),
    "lamb": _of("optimizer=lamb", "warmup={warm}", "decay={steps}"),
    "auto": _of("large_batch=auto:{steps}"),
}
_NAMES = {"warmup": "lr_scale + warmup"}


def parse_techniques(text: str | None) -> list[Technique]:
    """Parses `lamb,auto,ghost_bn=16+lr_scale=8:sqrt`: names of techniques, or the user's mods joined by +."""
    found = []
    for part in (text or ",".join(TECHNIQUES)).split(","):
        name = part.strip()
        if name in _KNOWN:
            found.append(Technique(_NAMES.get(name, name), _KNOWN[name]))
            continue
        mods = tuple(mod.strip() for mod in name.split("+"))
        try:
            catalog.parse([*mods, "emulate=2"])
        except UsageError as error:
            raise UsageError(
                f"--techniques {name}: {error.message}",
                advice=f"Choose from {', '.join(_KNOWN)}; or join mods by +: ghost_bn=16+lr_scale=8:sqrt",
            ) from None
        found.append(Technique(" + ".join(mods), lambda workers, steps, mods=mods: mods))  # type: ignore[misc]
    return found


Measure = Callable[[str, tuple[str, ...], int], Trial]  # name, mods, seed


class Converge:
    """One series of trials. Call `run`, then `judge`, also after an interrupt."""

    def __init__(
        self,
        measure: Measure,
        *,
        workers: int,
        seeds: int,
        techniques: Sequence[Technique],
    ) -> None:
        self.measure = measure
        self.workers, self.seeds, self.techniques = workers, seeds, list(techniques)
        self.trials: dict[str, list[Trial]] = {}
        self.mods: dict[str, tuple[str, ...]] = {ALONE: ()}
        self.unfinished = False
        self._parts = 1  # micro-batches; more than 1 if the batch does not fit into memory

    @property
    def planned(self) -> int:
        """The number of trials, if every technique applies and fits into memory."""
        return (len(self.techniques) + 2) * self.seeds

    def run(self) -> None:
        for seed in range(self.seeds):
            for name, mods in self._plan():
                known = self.trials.get(name, [])
                if known and known[0].unsupported:
                    continue
                trial = self._take(name, mods, seed)
                if trial.unfinished:
                    self.unfinished = True
                    return
                self.trials.setdefault(name, []).append(trial)
                if name == ALONE and trial.trouble:
                    return  # nothing to compare with

    def _plan(self) -> Sequence[tuple[str, Callable[[], tuple[str, ...]]]]:
        def emulated(technique: Technique | None) -> tuple[str, ...]:
            steps = self.trials[NAIVE][0].steps if technique else 0
            return (f"emulate={self.workers}", *(technique.mods(self.workers, max(1, steps)) if technique else ()))

        plan: list[tuple[str, Callable[[], tuple[str, ...]]]] = [(ALONE, lambda: ()), (NAIVE, lambda: emulated(None))]
        plan += [(t.name, lambda t=t: emulated(t)) for t in self.techniques]  # type: ignore[misc]
        return plan

    def _take(self, name: str, mods: Callable[[], tuple[str, ...]], seed: int) -> Trial:
        while True:
            asked = mods()
            if self._parts > 1 and name != ALONE:
                asked = (*asked, f"accumulate={self._parts}")
            self.mods[name] = asked
            parts = f".in{self._parts}" if asked and self._parts > 1 else ""
            trial = self.measure(f"{name.replace(' ', '')}.seed{seed}{parts}", asked, seed)
            larger = next((p for p in range(self._parts + 1, self.workers + 1) if self.workers % p == 0), None)
            if name == ALONE or not trial.out_of_memory or larger is None:
                return trial
            self._parts = larger


def judge(series: Converge, *, target: float | None, interrupted: bool = False) -> Verdict:
    """The verdict on the trials so far, also after an interrupt. The default target is the accuracy of one worker."""
    alone = series.trials.get(ALONE, [])
    if target is None and alone:
        target = _spread(alone).mean
    rows = [
        _row(name, 1 if name == ALONE else series.workers, trials, series.mods[name], target)
        for name, trials in series.trials.items()
    ]
    ours = [row for row in rows if row.technique != ALONE and row.accuracy.mean is not None]
    tied = _ties(ours)
    best = max(ours, key=lambda row: row.accuracy.mean or 0.0, default=None)
    return Verdict(
        workers=series.workers,
        seeds=series.seeds,
        target=target,
        rows=rows,
        chosen=best.technique if best and not tied else None,
        tied=tied,
        unfinished=series.unfinished,
        interrupted=interrupted,
    )


def _ties(rows: Sequence[Row]) -> list[str]:
    """The techniques whose range over seeds overlaps with that of the best mean; empty if none does, or if one seed
    shows no range."""
    by_mean = sorted(rows, key=lambda row: -(row.accuracy.mean or 0.0))
    if not by_mean or by_mean[0].accuracy.seeds < 2:
        return []
    low = by_mean[0].accuracy.low or 0.0
    near = [row.technique for row in by_mean if (row.accuracy.high or 0.0) >= low]
    return near if len(near) > 1 else []


def _row(name: str, workers: int, trials: Sequence[Trial], mods: Sequence[str], target: float | None) -> Row:
    reached = [_reached(trial, target) for trial in trials]
    epochs = [epoch for epoch, _ in reached if epoch is not None]
    times = [seconds for _, seconds in reached if seconds is not None]
    whole = len(trials)
    return Row(
        workers=workers,
        technique=name,
        mods=list(mods),
        accuracy=_spread(trials),
        samples_per_s=fmean(t.samples_per_s for t in trials) if trials else 0.0,
        diverged=min((t.diverged for t in trials if t.diverged is not None), default=None),
        steps=trials[0].steps if trials else 0,
        epochs_to_target=fmean(epochs) if epochs and len(epochs) == whole else None,
        seconds_to_target=fmean(times) if times and len(times) == whole else None,
        curves=[trial.curve for trial in trials],
        trouble=next((t.trouble for t in trials if t.trouble), ""),
        sharpness=_sharp([t.sharpness for t in trials if t.sharpness is not None]),
    )


def _sharp(found: Sequence[RunSharpness]) -> Sharp | None:
    if not found:
        return None
    values = [one.eigenvalue for one in found if one.eigenvalue is not None]
    moved = [(one.loss, one.moved - one.loss) for one in found if one.loss is not None and one.moved is not None]
    return Sharp(
        eigenvalue=fmean(values) if values else None,
        settled=all(one.settled for one in found if one.eigenvalue is not None),
        loss=fmean(loss for loss, _ in moved) if moved else None,
        rise=fmean(rise for _, rise in moved) if moved else None,
        radius=found[0].radius,
        line=next((one.line for one in found if one.line), []),
        trouble=next((one.trouble for one in found if one.trouble), ""),
    )


def _reached(trial: Trial, target: float | None) -> tuple[int | None, float | None]:
    for number, (seconds, value) in enumerate(trial.curve, 1):
        if target is not None and value is not None and value >= target:
            return number, seconds
    return None, None


def _spread(trials: Sequence[Trial]) -> Spread:
    values = [0.0 if t.accuracy is None else t.accuracy for t in trials if not t.trouble]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return Spread(mean=None, low=None, high=None, seeds=0)
    return Spread(mean=fmean(values), low=min(values), high=max(values), seeds=len(values))
