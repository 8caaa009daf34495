"""When step times have settled: how many of the first steps are warm-up.

A fixed number is wrong both ways: a plain script is steady after two steps, one that is compiled, captured into graphs
or tuned on the way after forty. So the times themselves are asked. Pure Python over floats: the worker asks while it
runs, readers of a record ask afterwards, and both get the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import sqrt
from statistics import median, variance

FEWEST = 8  # steps, before there is an answer
WINDOW = 5  # steps whose median is compared: two odd ones among them do no harm
CLOSE = 0.05  # medians within this share of each other agree, however little noise there is
SURE = 4.0  # … or within so many standard errors
EXTREME = 3.0  # a step so many times the usual one compiled, captured or allocated something
FIRST = 64  # … which is warm-up among so many first steps, and an accident later
WANDERING = 1.5  # times as far as windows of a settled run wander
MOSTLY = 0.9  # of the windows
BLOCKS = 8  # of the last half, whose medians tell a drift from wandering
MOSTLY_UP = 24  # of the 28 pairs of blocks: then they go up
_OF_MEDIAN = 1.25  # a median's standard error, as a multiple of the mean's


def settle(seconds: Sequence[float]) -> int | None:
    """How many first steps are warm-up; None while the times have not settled.

    The last half says what is usual, and how far short windows of a settled run wander from it. Warm-up ends at the
    first step from which on they wander no further. Single odd steps are tolerated; times that still go up or down in
    the last half have not settled.
    """
    middle = len(seconds) // 2
    if len(seconds) < FEWEST:
        return None
    tail = seconds[middle:]
    usual, noise = median(tail), _noise(tail)
    if _drifts(tail, usual, noise):
        return None
    near = max(CLOSE * usual, SURE * _OF_MEDIAN * noise / sqrt(WINDOW), WANDERING * _wander(tail, usual))
    fits = [abs(median(seconds[i : i + WINDOW]) - usual) <= near for i in range(min(middle, 4 * FIRST) + 1)]
    # Every window for a good while: a run of hours may be disturbed in its middle.
    first = next((w for w, fit in enumerate(fits) if fit and _mostly(fits[w : 2 * w + FIRST])), None)
    if first is None:
        return None
    extremes = [i for i in range(first, min(middle, FIRST)) if seconds[i] > EXTREME * usual]
    first = extremes[-1] + 1 if extremes else first
    while first < middle and abs(seconds[first] - usual) > max(near, SURE * noise):
        first += 1  # a window forgives its odd steps, but here they are the end of the warm-up
    return first


def _noise(seconds: Sequence[float]) -> float:
    """The standard deviation of a step, from the differences of neighbours: unlike the spread of all, those do not grow
    with a drift, and their median knows no outliers."""
    return 1.4826 * median(abs(b - a) for a, b in pairwise(seconds)) / sqrt(2)


def _wander(tail: Sequence[float], usual: float) -> float:
    """How far all but a tenth of the windows lie from what is usual: a busy host slows some steps in a row, which the
    noise from one step to the next does not show."""
    apart = sorted(abs(median(tail[i : i + WINDOW]) - usual) for i in range(max(1, len(tail) - WINDOW + 1)))
    return apart[len(apart) * 9 // 10] if len(apart) >= BLOCKS else 0.0


def _mostly(fits: Sequence[bool]) -> bool:
    return sum(fits) >= MOSTLY * len(fits)


def _drifts(tail: Sequence[float], usual: float, noise: float) -> bool:
    half = len(tail) // 2
    apart = abs(median(tail[:half]) - median(tail[-half:]))
    if apart <= max(CLOSE * usual, SURE * _OF_MEDIAN * noise * sqrt(2 / half)):
        return False
    # Steps that are slow for a while, now and then, go both ways; a drift goes one.
    size = len(tail) // BLOCKS
    blocks = [median(tail[k * size : (k + 1) * size]) for k in range(BLOCKS)] if size >= WINDOW else []
    within = sqrt((variance(blocks[: BLOCKS // 2]) + variance(blocks[BLOCKS // 2 :])) / 2) if blocks else 0.0
    ups = sum(a < b for a, b in combinations(blocks, 2))
    one_way = not MOSTLY_UP > ups > BLOCKS * (BLOCKS - 1) / 2 - MOSTLY_UP
    return one_way or apart > SURE * within * sqrt(4 / BLOCKS)
