"""The same-numbers check: when it says yes, when no, and when it says that it cannot say."""

from __future__ import annotations

import math

import pytest

from paceline.trials.core.same_numbers import compare, difference


def test_rounding_is_the_same_number():
    same = compare([2.0, 1.0], {2: [[2.0000001, 1.0]], 4: [[2.0, 1.0000004]]})
    assert same.checked
    assert same.same
    assert same.max_difference == pytest.approx(4e-7, rel=0.1)
    assert (same.workers, same.step) == (4, 2)


def test_a_wrong_factor_is_not():
    same = compare([2.0, 1.0], {2: [[2.0, 1.01]]})
    assert same.same is False
    assert same.max_difference == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("other", [[2.0], [2.0, 1.0, 0.5], [2.0, None], [2.0, math.nan], [2.0, math.inf]])
def test_a_series_that_parts_ways_is_not(other):
    same = compare([2.0, 1.0], {2: [other]})
    assert same.checked
    assert same.same is False
    assert same.max_difference is None


def test_both_nan_is_the_same():
    assert compare([math.nan], {2: [[math.nan]]}).same


def test_without_a_loss_there_is_nothing_to_say():
    same = compare([None, None], {2: [[None, None]]})
    assert not same.checked
    assert "no loss" in same.why


def test_every_round_counts():
    assert compare([1.0], {2: [[1.0], [1.0], [1.1]]}).same is False


def test_zero_is_zero():
    assert difference(0.0, 0.0) == 0.0
    assert difference(0.0, 1e-13) == 0.0
