"""What has been measured of each set of mods, and how much of a difference is noise. Pure: it runs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from paceline.trials.core.result import Measured

Mods = tuple[str, ...]

LEAST = 0.02  # a gain that is less than this is none
SURE = 2.0  # standard deviations …
SURE_AT_LAST = 3.0  # … and of what is claimed: of many mods that do nothing, some seem to gain
# Two or three repeated trials say little about noise: until there are more, they are weighed with a guess.
GUESS, GUESS_WEIGHT = 0.02, 2
SOON = 4  # trials later


class Speeds:
    """Trials by their set of mods, in the order in which they were made. The order of mods in a set is no matter."""

    def __init__(self) -> None:
        self._trials: dict[frozenset[str], list[Measured]] = {}
        self._when: dict[frozenset[str], list[int]] = {}
        self.made = 0

    def add(self, mods: Mods, measured: Measured) -> None:
        self.made += 1
        self._trials.setdefault(frozenset(mods), []).append(measured)
        self._when.setdefault(frozenset(mods), []).append(self.made)

    def of(self, mods: Mods) -> list[Measured]:
        return self._trials.get(frozenset(mods), [])

    def speed(self, mods: Mods) -> float:
        """Samples a second, by its latest trials: older ones were made on a machine that may have been another."""
        good = [trial.samples_per_s for trial in self.of(mods) if trial.ok]
        return mean(good[-2:]) if good else 0.0

    def cost(self, mods: Mods) -> float | None:
        """Seconds that a trial takes: the last one's, since the first may have filled a cache. None: not known."""
        trials = self.of(mods)
        return trials[-1].seconds if trials else None

    @property
    def noise(self) -> float:
        """The relative standard deviation of one trial: how far repeated trials of the same set lie apart, if they were
        made soon after one another. Sets are compared in pairs, to which a machine that slowly gets slower is no
        noise."""
        squares, seen = GUESS_WEIGHT * GUESS**2, GUESS_WEIGHT
        for mods, trials in self._trials.items():
            good = [(when, one) for when, one in zip(self._when[mods], trials, strict=True) if one.ok]
            for (then, before), (now, after) in pairwise(good):
                if now - then <= SOON:
                    squares += math.log(after.samples_per_s / before.samples_per_s) ** 2 / 2
                    seen += 1
        return math.sqrt(squares / seen)

    def age(self, mods: Mods) -> int:
        """How many trials ago a set was measured."""
        return self.made - self._when.get(frozenset(mods), [0])[-1]

    def error(self, pairs: int) -> float:
        """The standard deviation of a ratio of two sets that were measured in so many pairs."""
        return self.noise * math.sqrt(2 / pairs)

    def margin(self, pairs: int, *, last: bool = False) -> float:
        """What a gain over so many pairs must exceed, to be no noise."""
        return max(LEAST, (SURE_AT_LAST if last else SURE) * self.error(pairs))


def mean(numbers: Sequence[float]) -> float:
    """Of speeds and their ratios: the geometric one, for which twice and half cancel out."""
    return math.exp(fmean(map(math.log, numbers)))
