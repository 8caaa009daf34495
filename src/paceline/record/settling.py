"""Decides when step times have settled, that is, how many of the first steps are warm-up.

No fixed number fits: a plain script is steady after 2 steps; a script that is compiled, captured into CUDA graphs or
autotuned is steady after 40. So the step times themselves decide. The code is pure Python over floats: the worker calls
it during the run, readers of a record call it afterwards, and both get the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import sqrt
from statistics import median, variance

FEWEST = 8  # fewest steps for an answer
WINDOW = 5  # steps per window, whose median is compared: the median tolerates two outliers
CLOSE = 0.05  # two medians agree within this relative difference, however little noise there is
SURE = 4.0  # … or within this number of standard errors
EXTREME = 3.0  # a step this many times the usual one compiled, captured or allocated something
FIRST = 64  # … which is warm-up within this number of first steps, and an accident later
WANDERING = 1.5  # tolerance, as a multiple of the deviation of windows in a settled run
MOSTLY = 0.9  # share of the windows that must agree
BLOCKS = 8  # blocks of the last half, whose medians tell a drift from random deviation
MOSTLY_UP = 24  # rising pairs among the 28 pairs of blocks that make an upward drift
_OF_MEDIAN = 1.25  # a median's standard error, as a multiple of the mean's


def settle(seconds: Sequence[float]) -> int | None:
    """The number of warm-up steps; None while the times have not settled.

    The last half of the steps gives the usual step time, and how far short windows of a settled run deviate from it.
    Warm-up ends at the first step after which windows deviate no further. Single outliers are tolerated. Times that
    still rise or fall in the last half have not settled.
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
    # Most windows after w must agree, but only up to 2w + FIRST: a run of hours may be disturbed in its middle.
    first = next((w for w, fit in enumerate(fits) if fit and _mostly(fits[w : 2 * w + FIRST])), None)
    if first is None:
        return None
    extremes = [i for i in range(first, min(middle, FIRST)) if seconds[i] > EXTREME * usual]
    first = extremes[-1] + 1 if extremes else first
    while first < middle and abs(seconds[first] - usual) > max(near, SURE * noise):
        first += 1  # a window's median tolerates outliers, but outliers at this point still belong to the warm-up
    return first


def _noise(seconds: Sequence[float]) -> float:
    """The standard deviation of a step, from the differences between consecutive steps: unlike the spread over all
    steps, these differences do not grow with a drift, and their median ignores outliers."""
    return 1.4826 * median(abs(b - a) for a, b in pairwise(seconds)) / sqrt(2)


def _wander(tail: Sequence[float], usual: float) -> float:
    """The 90th percentile of the windows' deviations from the usual time: a busy host slows several consecutive steps,
    which the noise between two steps does not show."""
    apart = sorted(abs(median(tail[i : i + WINDOW]) - usual) for i in range(max(1, len(tail) - WINDOW + 1)))
    return apart[len(apart) * 9 // 10] if len(apart) >= BLOCKS else 0.0


def _mostly(fits: Sequence[bool]) -> bool:
    return sum(fits) >= MOSTLY * len(fits)


def _drifts(tail: Sequence[float], usual: float, noise: float) -> bool:
    half = len(tail) // 2
    apart = abs(median(tail[:half]) - median(tail[-half:]))
    if apart <= max(CLOSE * usual, SURE * _OF_MEDIAN * noise * sqrt(2 / half)):
        return False
    # Occasional slow phases go up and down again; a drift goes one way.
    size = len(tail) // BLOCKS
    blocks = [median(tail[k * size : (k + 1) * size]) for k in range(BLOCKS)] if size >= WINDOW else []
    within = sqrt((variance(blocks[: BLOCKS // 2]) + variance(blocks[BLOCKS // 2 :])) / 2) if blocks else 0.0
    ups = sum(a < b for a, b in combinations(blocks, 2))
    one_way = not MOSTLY_UP > ups > BLOCKS * (BLOCKS - 1) / 2 - MOSTLY_UP
    return one_way or apart > SURE * within * sqrt(4 / BLOCKS)
