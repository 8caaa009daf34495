"""When a trial has measured enough: the same step on every worker, rank 0's times."""

from __future__ import annotations

from typing import Any

import pytest
from staged import lone_group

from paceline.comm.group import Group
from paceline.script.stop_rule import FEWEST, Enough


def stopped_at(group: Group, step_seconds: float, wanted: float, warm: int = 0, most: int = 2000) -> int | None:
    """The step after which it was enough, of a script whose first steps take ten times as long."""
    enough = Enough(wanted)
    for step in range(1, most + 1):
        enough.add(step_seconds * (10 if step <= warm else 1))
        if enough.is_time_to_look(step) and enough.is_reached(group):
            return step
    return None


@pytest.mark.parametrize(
    ("seconds", "wanted", "warm", "stops"),
    [
        (0.01, 0.05, 0, 12),  # ten steps are the fewest, and twelve the first look after them
        (0.01, 0.12, 0, 12),
        (0.01, 0.13, 0, 16),
        (0.01, 1.0, 0, 128),
        (0.01, 0.05, 3, 16),
        (0.01, 0.05, 10, 24),
        (5.0, 1.0, 0, 12),
    ],
)
def test_it_is_enough_after_so_many_seconds_of_settled_steps(seconds, wanted, warm, stops):
    assert stopped_at(lone_group(), seconds, wanted, warm) == stops


def test_it_is_looked_at_ever_more_seldom():
    enough, looks = Enough(1e9), []
    for step in range(1, 200):
        enough.add(1.0)
        if enough.is_time_to_look(step):
            looks.append(step)
            assert not enough.is_reached(lone_group())
    assert looks == [8, 12, 16, 24, 32, 48, 64, 96, 128, 192]


def test_times_that_have_not_settled_are_not_enough():
    enough = Enough(20.0)
    for step in range(1, 17):
        enough.add(1.1**step)
        assert not (enough.is_time_to_look(step) and enough.is_reached(lone_group()))
    assert stopped_at(lone_group(), 2.0, 20.0) == 12, "others of as many seconds are"


def test_a_machine_that_is_never_quiet_keeps_nobody_for_ever():
    """Most steps are fast and many are not, so that the usual step says little of the time that passes."""
    enough, passed = Enough(1.0), 0.0
    for step in range(1, 10_000):
        passed += (seconds := 0.1 if step % 7 in (1, 2, 3) else 0.001)
        enough.add(seconds)
        if enough.is_time_to_look(step) and enough.is_reached(lone_group()):
            break
    assert 1.0 <= passed < 12.0


def test_a_late_compilation_is_no_measurement():
    enough = Enough(1.0)
    for step in range(1, 65):
        enough.add(60.0 if step in (20, 40) else 0.001)
        assert not (enough.is_time_to_look(step) and enough.is_reached(lone_group()))


def slower_by_rank(group: Group) -> int | None:
    return stopped_at(group, 0.01 * (1 + 9 * group.rank), 0.3)


def test_all_workers_stop_at_the_step_that_is_enough_for_rank_0(pool: Any):
    stops = pool(2).run(slower_by_rank)
    assert stops == [32, 32]
    assert stops[0] > FEWEST
