"""The order of a pipeline's forwards and backwards: nobody waits forever, and the bubble is the known one."""

from __future__ import annotations

import pytest

from paceline.strategies.pipelined.orders import bubble, training


@pytest.mark.parametrize("few_in_flight", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_no_schedule_lets_all_workers_wait(workers: int, few_in_flight: bool) -> None:
    for parts in (1, 2, 3):
        for turns in range(1, 14):
            assert 0 < bubble(workers, turns, parts, few_in_flight=few_in_flight) < 1


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_bubble_is_the_known_one(workers: int, parts: int) -> None:
    for turns in (workers, 2 * workers, 4 * workers):
        assert bubble(workers, turns, parts) == pytest.approx((workers - 1) / (turns * parts + workers - 1))
    assert bubble(workers, 1) == bubble(workers, 1, parts) == 1 - 1 / workers


@pytest.mark.parametrize(("few_in_flight", "expected"), [(True, [4, 3, 2, 1]), (False, [12] * 4)])
def test_a_backward_after_each_forward_keeps_few_micro_batches(few_in_flight: bool, expected: list[int]) -> None:
    most = []
    for worker in range(4):
        held = [0]
        for op in training(4, worker, 12, 1, few_in_flight=few_in_flight):
            held.append(held[-1] + (-1 if op.is_backward else 1))
        assert held[-1] == 0
        most.append(max(held))
    assert most == expected
