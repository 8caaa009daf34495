"""What has been measured of each set of mods, and how much of a difference is noise. Pure: it runs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from paceline.trials.measured import Measured

Mods = tuple[str, ...]

LEAST = 0.02  # a gain that is less than this is none
SURE = 2.0  # standard deviations …
SURE_AT_LAST = 3.0  # … and of what is claimed: of many mods that do nothing, some seem to gain
# Two or three repeated trials say little about noise: until there are more, they are weighed with a guess.
GUESS, GUESS_WEIGHT = 0.02, 2


class Speeds:
    """Trials by their set of mods, in the order in which they were made. The order of mods in a set is no matter."""

    def __init__(self) -> None:
        self._trials: dict[frozenset[str], list[Measured]] = {}

    def add(self, mods: Mods, measured: Measured) -> None:
        self._trials.setdefault(frozenset(mods), []).append(measured)

    def of(self, mods: Mods) -> list[Measured]:
        return self._trials.get(frozenset(mods), [])

    def speed(self, mods: Mods) -> float:
        """Samples a second, by its latest trials: older ones were made on a machine that may have been another."""
        good = [trial.samples_per_s for trial in self.of(mods) if trial.status == "ok"]
        return mean(good[-2:]) if good else 0.0

    def cost(self, mods: Mods) -> float | None:
        """Seconds that a trial takes: the last one's, since the first may have filled a cache. None: not known."""
        trials = self.of(mods)
        return trials[-1].seconds if trials else None

    @property
    def noise(self) -> float:
        """The relative standard deviation of one trial: how far repeated trials of the same set lie apart."""
        squares, freedom = GUESS_WEIGHT * GUESS**2, GUESS_WEIGHT
        for trials in self._trials.values():
            logs = [math.log(trial.samples_per_s) for trial in trials if trial.status == "ok"]
            squares += sum((log - fmean(logs)) ** 2 for log in logs)
            freedom += max(0, len(logs) - 1)
        return math.sqrt(squares / freedom)

    def error(self, pairs: int) -> float:
        """The standard deviation of a ratio of two sets that were measured in so many pairs."""
        return self.noise * math.sqrt(2 / pairs)

    def margin(self, pairs: int, *, last: bool = False) -> float:
        """What a gain over so many pairs must exceed, to be no noise."""
        return max(LEAST, (SURE_AT_LAST if last else SURE) * self.error(pairs))


def mean(numbers: Sequence[float]) -> float:
    """Of speeds and their ratios: the geometric one, for which twice and half cancel out."""
    return math.exp(fmean(map(math.log, numbers)))
