"""The arithmetic of intervals, against sets of single moments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.tables.trace.intervals import EMPTY, Spans

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def spans(pairs):
    return Spans.of([a for a, _ in pairs], [b for _, b in pairs])


def moments(pairs):
    return {t for a, b in pairs for t in range(a, b)}


def as_moments(found: Spans):
    """Also checks that the result is sorted and that no two intervals touch."""
    assert (found.starts < found.ends).all()
    assert (found.ends[:-1] < found.starts[1:]).all()
    return {t for a, b in zip(found.starts, found.ends, strict=True) for t in range(a, b)}


@given(PAIRS)
def test_a_union_is_the_set_of_its_moments(pairs):
    assert as_moments(spans(pairs)) == moments(pairs)
    assert spans(pairs).length == len(moments(pairs))


@given(PAIRS, PAIRS)
def test_sets_are_added_cut_and_taken_away(a, b):
    assert as_moments(spans(a) | spans(b)) == moments(a) | moments(b)
    assert as_moments(spans(a) & spans(b)) == moments(a) & moments(b)
    assert as_moments(spans(a) - spans(b)) == moments(a) - moments(b)


@given(PAIRS, st.integers(0, 60), st.integers(0, 60))
def test_gaps_are_what_is_left_of_a_window(pairs, start, end):
    assert as_moments(spans(pairs).gaps(start, end)) == set(range(start, end)) - moments(pairs)


@given(PAIRS, PAIRS)
def test_windows_are_measured_one_by_one(pairs, windows):
    starts, ends = np.array([a for a, _ in windows], dtype=int), np.array([b for _, b in windows], dtype=int)
    found = spans(pairs).length_within(starts, ends)
    assert found.tolist() == [len(moments(pairs) & set(range(a, b))) for a, b in windows]


@given(PAIRS, st.lists(st.integers(-5, 65), max_size=10))
def test_a_moment_is_found_in_its_interval(pairs, asked):
    found, at = spans(pairs), np.array(asked, dtype=int)
    assert found.covered(at).tolist() == [t in moments(pairs) for t in asked]
    for index, t in zip(found.index_of(at), asked, strict=True):
        assert index == -1 or found.starts[index] <= t < found.ends[index]


def test_nothing_has_no_length():
    assert (EMPTY.length, (EMPTY & EMPTY).length, (EMPTY | EMPTY).length, len(EMPTY - EMPTY)) == (0, 0, 0, 0)
