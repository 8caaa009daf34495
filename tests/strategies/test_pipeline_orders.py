"""The order of a pipeline's forwards and backwards: nobody waits forever, and bubbles are as small as predicted."""

from __future__ import annotations

import pytest

from paceline.strategies.pipelined.orders import Op, bubble, training

FORWARD, BACKWARD = 1.0, 2.0  # times of a whole stage


def simulate(workers: int, turns: int, parts: int, *, few_in_flight: bool) -> tuple[float, list[int]]:
    """Plays the schedule on workers with even stages. Returns the share of the time in which workers wait, and the most
    micro-batches that each worker holds. Fails if all workers wait for each other."""
    orders = [training(workers, w, turns, parts, few_in_flight=few_in_flight) for w in range(workers)]
    last = workers * parts - 1
    done: dict[tuple[int, int, bool], float] = {}  # when a micro-batch was ready: by micro-batch, stage and direction
    clock, place = [0.0] * workers, [0] * workers
    held, most = [0] * workers, [0] * workers
    while any(at < len(order) for at, order in zip(place, orders, strict=True)):
        moved = False
        for worker, order in enumerate(orders):
            while place[worker] < len(order):
                op = order[place[worker]]
                stage = op.part * workers + worker
                needs = before(op, stage, last)
                if needs is not None and needs not in done:
                    break
                start = max(clock[worker], done.get(needs, 0.0) if needs else 0.0)
                clock[worker] = start + (BACKWARD if op.is_backward else FORWARD) / parts
                done[op.turn, stage, op.is_backward] = clock[worker]
                held[worker] += -1 if op.is_backward else 1
                most[worker] = max(most[worker], held[worker])
                place[worker] += 1
                moved = True
        assert moved, "all workers wait"
    assert held == [0] * workers
    return 1 - (FORWARD + BACKWARD) * turns / max(clock), most


def before(op: Op, stage: int, last: int) -> tuple[int, int, bool] | None:
    """What must be there before this can be computed."""
    if op.is_backward:
        return (op.turn, stage, False) if stage == last else (op.turn, stage + 1, True)
    return (op.turn, stage - 1, False) if stage else None


@pytest.mark.parametrize("few_in_flight", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_schedule_ends(workers: int, few_in_flight: bool) -> None:
    for parts in (1, 2, 3):
        for turns in range(1, 14):
            simulate(workers, turns, parts, few_in_flight=few_in_flight)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_bubble_is_the_predicted_one(workers: int, parts: int) -> None:
    for turns in (workers, 2 * workers, 4 * workers):
        found, _ = simulate(workers, turns, parts, few_in_flight=True)
        assert found == pytest.approx(bubble(workers, turns, parts))


def test_a_backward_after_each_forward_keeps_few_micro_batches() -> None:
    assert simulate(4, 12, 1, few_in_flight=True)[1] == [4, 3, 2, 1]
    assert simulate(4, 12, 1, few_in_flight=False)[1] == [12] * 4
