"""Ledgers: what workers show each other, and when that can be compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.agreement import ledger as ledgers
from paceline.agreement.ledger import Ledger


def add(ledger: Ledger, *numbers: int) -> None:
    for number in numbers:
        ledger.add([torch.tensor(number)], f"about {number}")


def pair() -> tuple[Ledger, Ledger]:
    return Ledger(), Ledger()


def compare(*workers: Ledger) -> list[bool]:
    shown = [ledger.shown() for ledger in workers]
    return [ledger.disagrees(shown) for ledger in workers]


def test_equal_digests_agree() -> None:
    one, other = pair()
    for number in (5, -1, 2**62, 0):
        add(one, number)
        add(other, number)
        assert compare(one, other) == [False, False]
    assert one.entries == []
    assert one.last is not None
    assert one.last.about == "about 0"


@pytest.mark.parametrize("others", [[5, 7], [6, 5], [5, 0]], ids=["another", "in another order", "nothing"])
def test_others_do_not(others: list[int]) -> None:
    one, other = pair()
    add(one, 5, 6)
    add(other, *others)
    assert compare(one, other) == [True, True]
    assert [entry.about for entry in one.entries] == ["about 5", "about 6"]


def test_a_difference_is_not_folded_away() -> None:
    one, other = pair()
    add(one, 1, *range(1000))
    add(other, 2, *range(1000))
    assert compare(one, other) == [True, True]


def test_workers_that_show_other_counts_wait() -> None:
    """A script that saves on rank 0 only."""
    one, other = pair()
    add(one, 1)
    assert compare(one, other) == [False, False]
    add(other, 1)
    assert compare(one, other) == [False, False]
    add(one, 2)
    add(other, 3)
    assert compare(one, other) == [True, True]


def test_after_a_difference_that_was_looked_at_they_compare_what_follows() -> None:
    one, other = pair()
    add(one, 1)
    add(other, 2)
    assert compare(one, other) == [True, True]
    one.settle()
    other.settle()
    assert compare(one, other) == [False, False]
    add(one, 3)
    add(other, 3)
    assert compare(one, other) == [False, False]
    add(one, 4)
    add(other, 5)
    assert compare(one, other) == [True, True]


def test_digests_that_a_gpu_has_not_computed_yet_are_compared_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them, until the end."""
    late: set[int] = set()

    class Late(ledgers._Copy):
        def is_here(self, *, wait: bool) -> bool:
            return wait or self.values()[0] not in late

    monkeypatch.setattr(ledgers, "_Copy", Late)
    one, other = pair()
    late.add(7)
    add(one, 6, 7, 8)
    add(other, 6)
    assert one.shown()[0] == 1
    assert compare(one, other) == [False, False]
    add(other, 9)
    late.add(9)
    assert compare(one, other) == [False, False]
    assert one.shown(wait=True)[0] == 3
    late.clear()
    add(other, 8)
    assert compare(one, other) == [True, True]


def test_a_number_of_the_hosts_counts_too() -> None:
    one, other = pair()
    one.add([], "seed", 1)
    other.add([], "seed", 2)
    assert compare(one, other) == [True, True]


def test_what_is_shown_fits_a_message() -> None:
    ledger = Ledger()
    for number in range(100):
        add(ledger, number)
        values: list[Any] = list(ledger.shown())
        assert torch.tensor(values, dtype=torch.int64).tolist() == values
