"""Did the script print the same numbers? Compares loss series, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

TOLERANCE = 1e-4  # relative; float32 sums in another order stay well below it, a wrong factor well above

Losses = Sequence[float | None]


class SameNumbers(msgspec.Struct, kw_only=True):
    """`checked` is false where there was nothing to compare, and `why` says so. `max_difference` is relative,
    and None where a series has a number where another has none (NaN, infinity, an end)."""

    checked: bool
    same: bool | None = None
    max_difference: float | None = None
    tolerance: float = TOLERANCE
    steps: int = 0  # compared
    workers: int | None = None  # where the largest difference was seen
    step: int | None = None
    why: str = ""


def difference(a: float, b: float) -> float:
    """Relative to the larger. Infinite where only one of them is a number."""
    if math.isfinite(a) and math.isfinite(b):
        largest = max(abs(a), abs(b))
        return abs(a - b) / largest if largest > 1e-12 else 0.0
    return 0.0 if (math.isnan(a) and math.isnan(b)) or a == b else math.inf


def largest_difference(a: Losses, b: Losses) -> tuple[float, int, int]:
    """(the largest difference, the step at which it was, how many steps were compared). A series that ends
    before the other differs from there on."""
    worst, at, compared = 0.0, 0, 0
    for step, (x, y) in enumerate(zip(a, b, strict=False), 1):
        if x is None and y is None:
            continue
        compared += 1
        found = math.inf if x is None or y is None else difference(x, y)
        if found > worst:
            worst, at = found, step
    if len(a) != len(b):
        return math.inf, min(len(a), len(b)) + 1, compared
    return worst, at, compared


def compare(base: Losses, others: Mapping[int, Sequence[Losses]]) -> SameNumbers:
    """`base` is the loss series of the run to compare with, `others` the series of each number of workers."""
    if not any(loss is not None for loss in base):
        return SameNumbers(checked=False, why="no loss was seen: the script calls backward on no scalar")
    if not others:
        return SameNumbers(checked=False, why="there is only one number of workers")
    worst, at, who, compared = -1.0, 0, 0, 0
    for workers, series in others.items():
        for losses in series:
            found, step, steps = largest_difference(base, losses)
            compared += steps
            if found > worst:
                worst, at, who = found, step, workers
    return SameNumbers(
        checked=True,
        same=worst <= TOLERANCE,
        max_difference=worst if math.isfinite(worst) else None,
        steps=compared,
        workers=who,
        step=at or None,
    )
