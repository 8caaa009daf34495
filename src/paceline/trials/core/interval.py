"""The interval of a measured ratio of speeds, and whether the ratio is more than chance.

Every sentence that calls one set-up faster than another asks `Interval.clear`: there is no other place that decides it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

import msgspec

LEAST = 0.02  # smallest relative difference that counts
FEWEST = 3  # rounds: with fewer, their spread says too little, and nothing is claimed
# Student's t for 95 %, by degrees of freedom; the last one for more.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
# A round farther from the median than this many typical deviations was disturbed. A typical deviation below the usual
# one, that of a busy machine, counts as that.
ODD, USUAL = 4.0, 0.1
_DEVIATION = 1.48  # standard deviations in a median absolute deviation


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    """A ratio of two speeds, and the bounds of its 95 % interval. `pairs`: the pairs of trials behind it. `known` is
    false if they are too few for an interval."""

    ratio: float
    low: float
    high: float
    pairs: int
    known: bool = True

    @classmethod
    def around(cls, ratio: float, margin: float, pairs: int) -> Interval:
        """The interval of a ratio whose noise is known from elsewhere: `margin` is relative."""
        return cls(ratio=ratio, low=ratio / (1 + margin), high=ratio * (1 + margin), pairs=pairs)

    @classmethod
    def of(cls, ratios: Sequence[float], *, told: float | None = None) -> Interval:
        """The interval of the mean of paired ratios, from the spread of the steady ones. `told`: a ratio that is told
        in place of the mean, and that the interval then includes. With fewer than three pairs the bounds are the lowest
        and the highest ratio, and nothing is clear."""
        agreeing = steady(ratios)
        ratios = agreeing if len(agreeing) >= FEWEST else ratios
        ratio, pairs = mean(ratios), len(ratios)
        told = ratio if told is None else told
        low, high = min(ratios), max(ratios)
        if pairs >= FEWEST:
            student = _STUDENT[min(pairs - 1, len(_STUDENT)) - 1]
            half = student * stdev(map(math.log, ratios)) / math.sqrt(pairs)
            by_mean = cls.around(ratio, max(LEAST, math.expm1(half)), pairs)
            low, high = by_mean.low, by_mean.high
        return cls(ratio=told, low=min(low, told), high=max(high, told), pairs=pairs, known=pairs >= FEWEST)

    @property
    def clear(self) -> bool:
        """Whether the speeds differ by more than chance."""
        return self.faster or self.slower

    @property
    def faster(self) -> bool:
        return self.known and self.low > 1

    @property
    def slower(self) -> bool:
        return self.known and self.high < 1


def mean(numbers: Sequence[float]) -> float:
    """The geometric mean, because speeds and ratios multiply: twice and half cancel out."""
    return math.exp(fmean(map(math.log, numbers)))


def steady(ratios: Sequence[float]) -> list[float]:
    """The ratios without those that differ from the others by more than the noise: a stall, or another program."""
    if len(ratios) < FEWEST:
        return list(ratios)
    middle = median(map(math.log, ratios))
    typical = _DEVIATION * median(abs(math.log(ratio) - middle) for ratio in ratios)
    return [ratio for ratio in ratios if abs(math.log(ratio) - middle) <= ODD * max(USUAL, typical)]
