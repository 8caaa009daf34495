"""Measured throughput of each set of mods, and the noise of a measurement. Runs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from paceline.trials.core.interval import LEAST, Interval, mean
from paceline.trials.core.result import Measured

Mods = tuple[str, ...]

SURE = 2.0  # standard deviations that a gain must exceed …
SURE_AT_LAST = 3.0  # … and in the last check: among many useless mods, some seem to gain by chance
# Two or three repeated trials estimate noise badly, so they are averaged with a prior guess.
GUESS, GUESS_WEIGHT = 0.02, 2
SOON = 4  # trials: repeats further apart do not count for the noise


class Speeds:
    """Trials by set of mods, in the order they ran. The order of mods in a set does not matter."""

    def __init__(self) -> None:
        self._trials: dict[frozenset[str], list[Measured]] = {}
        self._when: dict[frozenset[str], list[int]] = {}
        self.made = 0

    def add(self, mods: Mods, measured: Measured) -> None:
        self.made += 1
        self._trials.setdefault(frozenset(mods), []).append(measured)
        self._when.setdefault(frozenset(mods), []).append(self.made)

    def add_again(self, mods: Mods, measured: Measured) -> None:
        """A trial that was already added with more mods, which were not in force: it measured this set, too."""
        self._trials.setdefault(frozenset(mods), []).append(measured)
        self._when.setdefault(frozenset(mods), []).append(self.made)

    def of(self, mods: Mods) -> list[Measured]:
        return self._trials.get(frozenset(mods), [])

    def speed(self, mods: Mods, latest: int = 2) -> float:
        """Samples/s of the latest trials; the machine's speed may have changed since older ones."""
        good = [trial.samples_per_s for trial in self.of(mods) if trial.ok]
        return mean(good[-latest:]) if good else 0.0

    def cost(self, mods: Mods) -> float | None:
        """Seconds of the last trial of this set; the first may have filled a cache. None: no trial yet."""
        trials = self.of(mods)
        return trials[-1].seconds if trials else None

    @property
    def noise(self) -> float:
        """The relative standard deviation of one trial, from repeated trials of the same set soon after one another. A
        slow drift of the machine does not count, because sets are compared in pairs."""
        squares, seen = GUESS_WEIGHT * GUESS**2, GUESS_WEIGHT
        for mods, trials in self._trials.items():
            good = [(when, one) for when, one in zip(self._when[mods], trials, strict=True) if one.ok]
            for (then, before), (now, after) in pairwise(good):
                if now - then <= SOON:
                    squares += math.log(after.samples_per_s / before.samples_per_s) ** 2 / 2
                    seen += 1
        return math.sqrt(squares / seen)

    def age(self, mods: Mods) -> int:
        """The number of trials since a set was measured."""
        return self.made - self._when.get(frozenset(mods), [0])[-1]

    def error(self, pairs: int) -> float:
        """The standard deviation of the ratio of two sets, measured in `pairs` pairs of trials."""
        return self.noise * math.sqrt(2 / pairs)

    def margin(self, pairs: int, *, last: bool = False) -> float:
        """The gain that `pairs` pairs of trials must exceed to count as more than noise."""
        return max(LEAST, (SURE_AT_LAST if last else SURE) * self.error(pairs))

    def interval(self, ratios: Sequence[float], *, last: bool = False) -> Interval:
        """The gain that these pairs of trials show, with its bounds."""
        return Interval.around(mean(ratios), self.margin(len(ratios), last=last), len(ratios))
