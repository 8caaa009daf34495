"""Where the whole time of a run went, from the command to its end: not only the steps, but what is around them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.record.schema import Step

SKEW = 1.0  # seconds that clocks may differ


class WallClock(msgspec.Struct, kw_only=True):
    """Seconds. The parts add up to `total`."""

    total: float
    start: float  # until the script begins: importing torch, forking the workers
    warm_up: float  # the script's own set-up, and its first steps
    steps: float  # all other steps
    evaluation: float  # calls in eval mode, between and after the steps
    check: float  # Paceline's own checks, until the last step
    end: float  # from the last step on: what the script still does, and the end of the workers
    between: float = 0.0  # not in a step, such as the time between two attempts of a run that started again


def read_wall_clock(
    steps: Sequence[Step], warm_up: int, *, began: float, ended: float, evaluated_after: float
) -> WallClock | None:
    """Of rank 0's steps, of which the first `warm_up` are warm-up. `began` and `ended` are unix times of the command;
    `evaluated_after` are seconds of evaluation after the last step. None if there is no step, or if the clock of
    the host that wrote them differs from this one's."""
    if not steps:
        return None
    first, last = steps[0], steps[-1]
    begun = first.at - first.total - first.check
    if begun < began - SKEW or last.at > ended + SKEW:
        return None
    warm = sum(step.total - step.evaluation for step in steps[:warm_up])
    steady = sum(step.total - step.evaluation for step in steps[warm_up:])
    evaluation, check = sum(step.evaluation for step in steps), sum(step.check for step in steps)
    start = max(begun - began, 0.0)
    end = max(ended - last.at - evaluated_after, 0.0)
    total = ended - began
    between = max(total - start - warm - steady - evaluation - check - evaluated_after - end, 0.0)
    return WallClock(
        total=total,
        start=start,
        warm_up=warm,
        steps=steady,
        evaluation=evaluation + evaluated_after,
        check=check,
        end=end,
        between=between,
    )
