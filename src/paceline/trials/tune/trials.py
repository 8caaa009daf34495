"""The trials of a `tune` search: runs them in pairs and within the budget. `search` decides which trials to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from paceline.trials.core.interval import LEAST, mean
from paceline.trials.core.result import Measured, Status
from paceline.trials.tune.candidates import settings_of
from paceline.trials.tune.noise import Mods, Speeds

MOST_PAIRS, MOST_UNDER_NOISE = 3, 8
NOISY, SHORTER = 0.1, 0.5  # above this noise, trials are measured for this part of the time, and more often
DECISIVE = 3.0  # margins above which one pair is enough
FRESH = 8.0  # seconds that a fresh process takes to start, as a guess: it imports torch
STALE, UNSTEADY = 4, 0.03  # a speed is measured again after this many trials, if the noise exceeds this fraction
LONG = 2.0  # times the seconds of the best set's trial: a trial that costs more than the pair that it could be
AS_IT_IS: Mods = ()


class TimeLeft(Protocol):
    """The part of a budget that a search uses."""

    @property
    def left(self) -> float: ...
    @property
    def spent(self) -> float: ...
    @property
    def limit(self) -> float | None: ...


class Measures(Protocol):
    """A bench, which measures a set of mods and returns failures as results."""

    @property
    def budget(self) -> TimeLeft: ...
    def measure(self, name: str, *, mods: Mods | None = None, alone: bool = False, **changes: Any) -> Measured: ...


class NoTime(Exception):
    """The budget has no time for the next trial."""


class Trials:
    """The trials so far, and the expected duration of the next. `starts`: extra seconds of a mod's first steps,
    compared with the baseline. `enough`: the seconds of steady steps of a trial. `alone`: the trials in fresh
    processes, which belong to the last check."""

    def __init__(self, bench: Measures, starts: Mapping[str, float], *, enough: float | None = None) -> None:
        self.bench, self.speeds, self.alone = bench, Speeds(), Speeds()
        self._starts, self._enough = starts, enough

    def baseline(self, name: str, **changes: Any) -> Measured:
        """Measures the unmodified script, regardless of the budget."""
        return self._made(AS_IT_IS, self.bench.measure(name, mods=AS_IT_IS, **changes))

    def measure(self, mods: Mods, *, best: Mods) -> Measured:
        """Runs one more trial of a set. Raises NoTime unless the budget has time for this trial and for the last check
        of `best`, or of this set in case it is kept. While nothing has gained, no time is kept for a check."""
        check = max(self._last_check(best), self._last_check(mods) if self.speeds.of(mods) else 0.0)
        if self.cost(mods) + check > self.bench.budget.left:
            raise NoTime
        applied, changes = settings_of(mods)
        repeats = sum(1 for trial in self.speeds.of(mods) if ".seed" not in trial.name)
        if self._enough is not None and self.speeds.noise > NOISY:
            changes["enough"] = self._enough * SHORTER
        # Sorted, because the order of mods does not matter and the journal finds a trial by its name.
        name = f"{'+'.join(sorted(mods)) or 'baseline'}.r{repeats + 1}"
        measured = self.bench.measure(name, mods=applied, **changes)
        if measured.status is Status.BUDGET:
            raise NoTime
        return self._made(mods, measured)

    def run_alone(self, mods: Mods) -> Measured:
        """Runs a set in a fresh process, for as many steps as its trials took. It may end shortly after the budget, as
        a search without a last check is worth nothing. Raises NoTime if that is not enough."""
        limit = self.bench.budget.limit
        if limit is not None and self._cost_alone(mods) > limit:
            raise NoTime
        applied, changes = settings_of(mods)
        name = f"{'+'.join(sorted(mods)) or 'baseline'}.alone{len(self.alone.of(mods)) + 1}"
        steps = max((trial.steps for trial in self.speeds.of(mods)), default=0)
        if steps:
            changes["steps"] = steps
        measured = self.bench.measure(name, mods=applied, alone=True, **changes)
        if measured.status is Status.BUDGET:
            raise NoTime
        self.alone.add(mods, measured)
        return measured

    def refresh(self, mods: Mods, *, against: Mods) -> None:
        """Measures a set again before the trial that it is compared `against`: if its last trial was long ago and the
        machine is noisy, or if the next trial takes so long that both should count as a pair."""
        age = self.speeds.age(mods)
        if (age >= STALE and self.speeds.noise > UNSTEADY) or (age and self._is_long(against, mods)):
            self.measure(mods, best=mods)

    def pairs(self, old: Mods, new: Mods, *, best: Mods, most: int = MOST_PAIRS) -> list[float]:
        """The speed ratios of the new set to the old one, pair by pair, until the result is clear: at most `most`, or
        more where the machine is noisy. Empty if a trial failed."""
        if self.speeds.noise > NOISY:
            most = MOST_UNDER_NOISE
        seen = self.seen(old, new)
        if seen is not None:
            return [seen]
        ratios = self._just_made(old, new)
        if ratios and ratios[0] > 1 + DECISIVE * self.speeds.margin(1):
            return ratios
        while len(ratios) < most:
            try:
                before = self.measure(old, best=best)
                after = self.measure(new, best=best)
            except NoTime:
                # One decisive pair is better than none.
                if ratios and mean(ratios) > 1 + DECISIVE * self.speeds.margin(1):
                    return ratios
                raise
            if not before.ok or not after.ok:
                return []
            ratios.append(after.samples_per_s / before.samples_per_s)
            gain, pairs = mean(ratios), len(ratios)
            # One decisive pair is enough, or two that agree.
            if gain > 1 + (DECISIVE if pairs == 1 else 1) * self.speeds.margin(pairs):
                break
            if gain + self.speeds.error(pairs) < 1 + LEAST:
                break
        return ratios

    def _just_made(self, old: Mods, new: Mods) -> list[float]:
        """The ratio of the last two trials, if they were of these sets and the new set's trial is long."""
        if self.speeds.age(new) or self.speeds.age(old) != 1 or not self._is_long(new, old):
            return []
        return [self.speeds.of(new)[-1].samples_per_s / self.speeds.of(old)[-1].samples_per_s]

    def _is_long(self, new: Mods, old: Mods) -> bool:
        return self.cost(new) > LONG * self.cost(old)

    def seen(self, old: Mods, new: Mods) -> float | None:
        """The speed ratio from existing trials, if they are decisive: the new set ran soon after two trials of the old
        set, and far faster than both. That is safe, because disturbances only make trials slower."""
        before, after = self.speeds.of(old)[-2:], self.speeds.of(new)[-1:]
        soon = max(self.speeds.age(old), self.speeds.age(new)) <= STALE + 1
        if not soon or len(before) < 2 or any(not trial.ok for trial in (*before, *after)):
            return None
        gain = after[0].samples_per_s / max(trial.samples_per_s for trial in before)
        sure = gain > 1 + DECISIVE * self.speeds.margin(1) and self._last_check(new) <= self.bench.budget.left
        return gain if sure else None

    def cost(self, mods: Mods) -> float:
        """Expected seconds of a trial of this set."""
        known = self.speeds.cost(mods)
        if known is not None:
            return known
        plain = self.speeds.cost(AS_IT_IS) or 0.0
        return max([plain, *(self.speeds.cost((mod,)) or plain + self._starts.get(mod, 0.0) for mod in mods)])

    def _last_check(self, mods: Mods) -> float:
        """Seconds to reserve for the last check of this set against the baseline: one pair if the gain is decisive,
        else two; of the baseline itself there is none."""
        if not mods:
            return 0.0
        gain = self.speeds.speed(mods) / self.speeds.speed(AS_IT_IS)
        sure = gain > 1 + 2 * DECISIVE * self.speeds.margin(1, last=True)
        return (1 if sure else 2) * (self._cost_alone(AS_IT_IS) + self._cost_alone(mods))

    def _cost_alone(self, mods: Mods) -> float:
        """Expected seconds of a trial of this set in a fresh process. What one set takes says little of another: a
        compiler is imported and reads its caches."""
        known = self.alone.cost(mods)
        return self.cost(mods) + FRESH if known is None else known

    def _made(self, mods: Mods, measured: Measured) -> Measured:
        self.speeds.add(mods, measured)
        return measured
