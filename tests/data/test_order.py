"""The order of samples, and whose turn each of them is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.planning.nodes import Context, Deal, settle
from paceline.data.planning.order import Order, Repeated, Shuffled, Skipped, Taken, Whole


def listed(order: Order, epoch: tuple[int, ...] = (0,), count: int | None = None) -> list[int]:
    length = order.length if count is None else count
    return order.at(np.arange(length), epoch).tolist()


@given(st.integers(0, 60), st.integers(0, 5), st.integers(0, 3))
def test_a_shuffled_epoch_holds_every_sample_once(length: int, seed: int, epoch: int) -> None:
    order = Shuffled(Whole(length), seed)
    assert sorted(listed(order, (epoch,))) == list(range(length))
    assert listed(order, (epoch,)) == listed(Shuffled(Whole(length), seed), (epoch,))


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    orders = [tuple(listed(Shuffled(Whole(50), seed), (epoch,))) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9


@given(st.integers(1, 20), st.integers(0, 4), st.integers(0, 30), st.integers(0, 30))
def test_orders_compose_as_lists_do(length: int, times: int, skip: int, take: int) -> None:
    order = Taken(Skipped(Repeated(Whole(length), times), skip), take)
    expected = (list(range(length)) * times)[skip:][:take]
    assert order.length == len(expected)
    assert listed(order) == expected


@given(st.integers(1, 20), st.integers(1, 60))
def test_a_repeated_order_shuffles_each_round_anew(length: int, count: int) -> None:
    order = Repeated(Shuffled(Whole(length), 3), None)
    found = listed(order, count=count)
    for number in range(count // length):
        part = found[number * length : (number + 1) * length]
        assert sorted(part) == list(range(length))
        assert part == listed(Shuffled(Whole(length), 3), (0, number))


def test_any_position_can_be_asked_for_alone() -> None:
    order = Repeated(Shuffled(Whole(7), 1), None)
    whole = listed(order, count=700)
    for position in (0, 6, 7, 300, 699, 13):
        assert order.at(np.array([position]), (0,)).tolist() == [whole[position]]


@given(st.integers(0, 50), st.integers(1, 6), st.integers(1, 5))
def test_every_position_is_dealt_once_and_parts_differ_by_one(length: int, world: int, count: int) -> None:
    parts = []
    for rank in range(world):
        deal = Deal(length, Context(rank=rank, world=world))
        mine: list[int] = []
        assert deal.left() == len(range(rank, length, world))
        while len(got := deal.take(count)):
            mine += got.tolist()
        assert deal.left() == 0
        parts.append(mine)
    assert sorted(itertools.chain(*parts)) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(
    st.integers(0, 40),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_workers_may_change_in_number_again_and_again(length: int, takes: list[list[int]], last: int) -> None:
    """Each generation of workers takes what it takes; the next one goes on from what all of them say."""
    mark, found = None, []
    for counts in takes:
        deals = [Deal(length, Context(rank=rank, world=len(counts)), mark) for rank in range(len(counts))]
        for deal, count in zip(deals, counts, strict=True):
            found += deal.take(count).tolist()
        mark = settle([deal.mark() for deal in deals], length)
    for rank in range(last):
        found += Deal(length, Context(rank=rank, world=last), mark).take(length + 1).tolist()
    assert sorted(found) == list(range(length))


def test_settling_workers_that_went_equally_far_leaves_one_number() -> None:
    deals = [Deal(None, Context(rank=rank, world=3)) for rank in range(3)]
    for deal in deals:
        deal.take(1000)
    assert settle([deal.mark() for deal in deals], None) == {"todo": [], "next": 3000, "done": 0}


def test_what_never_ends_is_not_shuffled_as_a_whole() -> None:
    with pytest.raises(ValueError, match="endless order"):
        Shuffled(Repeated(Whole(3), None), 0)
