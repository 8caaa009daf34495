"""How many first steps are warm-up: found from the times, whatever they are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.record.settling import FEWEST, settle

warm = st.lists(st.floats(1.5, 500.0), max_size=20)
scales = st.sampled_from([1e-6, 1e-3, 1.0, 60.0])


@given(warm, st.integers(FEWEST, 200), scales)
def test_slow_first_steps_are_warm_up_and_nothing_else_is(first, more, scale):
    steady = [1.0] * (len(first) + more)
    assert settle([scale * second for second in first + steady]) == len(first)


@given(warm, st.integers(30, 100), st.floats(0.0, 0.1), st.integers(0, 1000))
def test_noise_is_no_warm_up(first, more, spread, seed):
    chance = random.Random(seed)
    steady = [max(0.1, chance.gauss(1.0, spread)) for _ in range(2 * len(first) + more)]
    found = settle([second + 1.0 for second in first] + steady)
    assert found is not None
    assert len(first) <= found <= len(first) + 5


@given(st.integers(20, 200), st.floats(0.02, 0.2), st.booleans(), st.integers(0, 1000))
def test_times_that_still_drift_have_not_settled(steps, by, down, seed):
    chance = random.Random(seed)
    times = [(1 + by) ** k * chance.uniform(0.99, 1.01) for k in range(steps)]
    assert settle(times[::-1] if down else times) is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True), st.floats(5.0, 1000.0))
def test_a_step_that_compiles_among_the_first_ones_is_warm_up(where, slow):
    times = [1.0] * 80
    for k in where:
        times[k] = slow
    assert settle(times) == max(where) + 1


@given(st.integers(100, 199), st.floats(2.0, 1000.0))
def test_a_single_odd_step_later_on_is_an_accident(where, slow):
    times = [4.0, 2.0] + [1.0] * 198
    times[where] = slow
    assert settle(times) == 2


@given(st.lists(st.floats(0.001, 1000.0), max_size=60), scales)
def test_the_answer_is_of_the_first_half_and_does_not_depend_on_the_unit(times, scale):
    found = settle(times)
    assert found is None or 0 <= found <= len(times) // 2
    assert settle([1024.0 * second for second in times]) == found


@pytest.mark.parametrize("steps", range(FEWEST))
def test_a_few_steps_say_nothing(steps):
    assert settle([1.0] * steps) is None


def test_every_other_step_may_be_slow():
    assert settle([1.0, 2.0] * 20) == 0


def test_a_disturbance_in_a_long_run_is_no_warm_up():
    assert settle([3.0] * 10 + [1.0] * 2000 + [1.5] * 100 + [1.0] * 3000) == 10


def test_a_machine_that_slows_down_for_the_second_half_has_not_settled():
    assert settle([1.0] * 30 + [1.3] * 10) is None
