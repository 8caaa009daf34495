"""When step times have settled: how many of the first steps are warm-up.

A fixed number is wrong both ways: a plain script is steady after two steps, one that is compiled, captured into graphs
or tuned on the way after forty. So the times themselves are asked. Pure Python over floats: the worker asks while it
runs, readers of a record ask afterwards, and both get the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

FEWEST = 8  # steps, before there is an answer
WINDOW = 5  # steps whose median is compared: two odd ones among them do no harm
CLOSE = 0.05  # medians within this share of each other agree, however little noise there is
SURE = 4.0  # … or within so many standard errors
EXTREME = 3.0  # a step so many times the usual one compiled, captured or allocated something
FIRST = 64  # … which is warm-up among so many first steps, and an accident later
_OF_MEDIAN = 1.25  # a median's standard error, as a multiple of the mean's


def settle(seconds: Sequence[float]) -> int | None:
    """How many first steps are warm-up; None while the times have not settled.

    The last half says what is usual. Warm-up ends at the first step from which on short windows agree with it. Single
    odd steps are tolerated; times that still go up or down in the last half have not settled.
    """
    middle = len(seconds) // 2
    if len(seconds) < FEWEST:
        return None
    tail = seconds[middle:]
    usual, noise = median(tail), _noise(tail)
    if _drifts(tail, usual, noise):
        return None
    near = max(CLOSE * usual, SURE * _OF_MEDIAN * noise / sqrt(WINDOW))
    fits = [abs(median(seconds[i : i + WINDOW]) - usual) <= near for i in range(min(middle, 4 * FIRST) + 1)]
    # Every window for a good while: a run of hours may be disturbed in its middle.
    first = next((w for w, fit in enumerate(fits) if fit and all(fits[w : 2 * w + FIRST])), None)
    if first is None:
        return None
    extremes = [i for i in range(first, min(middle, FIRST)) if seconds[i] > EXTREME * usual]
    first = extremes[-1] + 1 if extremes else first
    while first < middle and abs(seconds[first] - usual) > max(CLOSE * usual, SURE * noise):
        first += 1  # a window forgives its odd steps, but here they are the end of the warm-up
    return first


def _noise(seconds: Sequence[float]) -> float:
    """The standard deviation of a step, from its neighbours: unlike the spread of all, what lies between those does not
    grow with a drift, and the median knows no outliers. A change of level shows in few differences of neighbours, a
    steady drift in all of them, but not in how far each lies off the line between its two: the smaller one counts."""
    apart = median(abs(b - a) for a, b in pairwise(seconds)) / sqrt(2)
    off = median(abs(a - 2 * b + c) for a, b, c in zip(seconds, seconds[1:], seconds[2:], strict=False)) / sqrt(6)
    return 1.4826 * min(apart, off)


def _drifts(tail: Sequence[float], usual: float, noise: float) -> bool:
    half = len(tail) // 2
    apart = abs(median(tail[:half]) - median(tail[-half:]))
    return apart > max(CLOSE * usual, SURE * _OF_MEDIAN * noise * sqrt(2 / half))
