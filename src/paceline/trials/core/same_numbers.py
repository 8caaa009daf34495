"""The same-numbers check: compares the losses of runs step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

TOLERANCE = 1e-4  # relative; float32 sums in another order stay well below it, a wrong factor well above

Losses = Sequence[float | None]


class SameNumbers(msgspec.Struct, kw_only=True):
    """The result of the check. `checked` is false if there was nothing to compare; `why` has the reason.
    `max_difference` is relative; None if one series has a number at a step and another has none (NaN, infinity, the end
    of the series)."""

    checked: bool
    same: bool | None = None
    max_difference: float | None = None
    tolerance: float = TOLERANCE
    steps: int = 0  # compared
    workers: int | None = None  # the number of workers with the largest difference
    step: int | None = None
    why: str = ""


def difference(a: float, b: float) -> float:
    """The difference relative to the larger number. Infinite if only one of them is a finite number."""
    if math.isfinite(a) and math.isfinite(b):
        largest = max(abs(a), abs(b))
        return abs(a - b) / largest if largest > 1e-12 else 0.0
    return 0.0 if (math.isnan(a) and math.isnan(b)) or a == b else math.inf


def largest_difference(a: Losses, b: Losses) -> tuple[float, int, int]:
    """The largest difference, its step, and the number of compared steps. If one series ends earlier, the series differ
    from that step on."""
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
    """Compares all series with `base`. `others` holds the series of each number of workers."""
    if not any(loss is not None for loss in base):
        return SameNumbers(checked=False, why="there is no loss: the script calls backward on no scalar")
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
