"""The wall clock of a run: every second is accounted for."""

from __future__ import annotations

import pytest

from paceline.record.schema import Step
from paceline.trials.core.wall_clock import read_wall_clock


def a_step(number: int, at: float, total: float, evaluation: float = 0.0, check: float = 0.0) -> Step:
    rest = total - evaluation
    return Step(
        step=number,
        at=at,
        samples=8,
        total=total,
        data=0.0,
        forward=rest,
        backward=0.0,
        communication=0.0,
        optimizer=0.0,
        evaluation=evaluation,
        check=check,
    )


def test_the_parts_of_a_run_add_up_to_its_wall_clock() -> None:
    steps = [
        a_step(1, at=107.0, total=1.0, check=2.0),
        a_step(2, at=108.0, total=0.75, check=0.25),
        a_step(3, at=111.0, total=3.0, evaluation=2.0),
    ]
    clock = read_wall_clock(steps, 1, began=100.0, ended=115.0, evaluated_after=1.5)
    assert clock is not None
    assert (clock.total, clock.start, clock.warm_up, clock.steps) == (15.0, 4.0, 1.0, 1.75)
    assert (clock.evaluation, clock.check, clock.end, clock.between) == (3.5, 2.25, 2.5, 0.0)


def test_the_time_between_two_attempts_is_told_apart() -> None:
    steps = [a_step(1, at=102.0, total=1.0), a_step(1, at=109.0, total=1.0)]
    clock = read_wall_clock(steps, 0, began=100.0, ended=110.0, evaluated_after=0.0)
    assert clock is not None
    assert clock.between == pytest.approx(6.0)


def test_a_run_without_a_step_has_none() -> None:
    assert read_wall_clock([], 0, began=0.0, ended=1.0, evaluated_after=0.0) is None
