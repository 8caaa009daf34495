"""What a record says of a run's speed."""

from __future__ import annotations

import pytest
from records import step, write_record

from paceline.tables.figures import columns_of, warm_up
from paceline.trials.core.summary import summarize


def test_the_first_steps_do_not_count_for_the_speed(tmp_path):
    slow = [step(k, own=5.0) for k in range(1, 7)]
    steady = [step(k) for k in range(7, 31)]
    write_record(tmp_path, [slow + steady])
    summary = summarize(tmp_path)
    assert summary.samples_per_s == pytest.approx(640)
    assert summary.step_time == pytest.approx(0.1)
    assert (summary.steps, summary.samples, summary.warm_up) == (30, 30 * 64, 6)


@pytest.mark.parametrize(("steps", "dropped"), [(0, 0), (1, 0), (2, 0), (3, 1), (7, 2), (24, 8)])
def test_where_times_never_settle_a_third_is_warm_up(steps, dropped):
    assert warm_up(columns_of([step(k, own=0.1 * 1.2**k) for k in range(steps)])) == dropped


def test_evaluation_between_steps_is_no_warm_up():
    steps = [step(k) for k in range(20)]
    for k in (0, 5, 10):
        steps[k].total, steps[k].evaluation = 9.1, 9.0
    assert warm_up(columns_of(steps)) == 0


def test_the_parts_of_a_step_add_up(tmp_path):
    write_record(tmp_path, [[step(k) for k in range(1, 21)] for _ in range(2)])
    parts = summarize(tmp_path).step
    assert sum(seconds for part, seconds in parts.items() if part != "total") == pytest.approx(parts["total"])


def test_the_slowest_worker_is_the_one_that_the_others_wait_for(tmp_path):
    """All three take 0.1 s a step; rank 1 works through 0.09 of them while its peers wait."""
    write_record(
        tmp_path,
        [
            [step(k, own=0.05, communication=0.05) for k in range(1, 21)],
            [step(k, own=0.09, communication=0.01) for k in range(1, 21)],
            [step(k, own=0.05, communication=0.05) for k in range(1, 21)],
        ],
    )
    slowest = summarize(tmp_path).slowest
    assert slowest is not None
    assert slowest.rank == 1
    assert slowest.behind == pytest.approx(0.04)


def test_one_worker_is_not_called_slow(tmp_path):
    write_record(tmp_path, [[step(1), step(2)]])
    assert summarize(tmp_path).slowest is None


def test_a_script_that_makes_no_step_has_a_summary(tmp_path):
    write_record(tmp_path, [[], []])
    summary = summarize(tmp_path)
    assert (summary.steps, summary.samples_per_s, summary.first_loss, summary.slowest) == (0, 0.0, None, None)


def test_first_and_last_loss(tmp_path):
    write_record(tmp_path, [[step(1, loss=None), step(2, loss=2.0), step(3, loss=1.5)]])
    summary = summarize(tmp_path)
    assert (summary.first_loss, summary.last_loss) == (2.0, 1.5)
