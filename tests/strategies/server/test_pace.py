"""Who may go on: bounded staleness, synchronous rounds, backup workers, workers that come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.strategies.server.space import Pace


def started(bound: float, workers: int, backup: int = 0) -> Pace[str]:
    pace: Pace[str] = Pace(bound, workers=workers, backup=backup)
    for worker in range(workers):
        pace.join(worker, 0)
    return pace


def rounds(pace: Pace[str]) -> list[list[tuple[int, str]]]:
    made: list[list[tuple[int, str]]] = []
    pace.complete(made.append)
    return made


@given(st.integers(1, 4), st.integers(1, 5), st.lists(st.integers(0, 4), max_size=60))
def test_nobody_who_may_go_is_further_ahead_than_the_bound(bound: int, workers: int, turns: list[int]) -> None:
    pace = started(bound, workers)
    for worker in turns:
        if worker < workers and pace.may_go(worker):
            pace.step(worker)
            assert pace.clocks[worker] - pace.slowest <= bound + 1  # done, and now it waits
    assert all(pace.clocks[w] - pace.slowest <= bound for w in range(workers) if pace.may_go(w))


def test_a_dead_worker_holds_nobody_back() -> None:
    pace = started(1, 2)
    for _ in range(2):
        pace.step(0)
    assert not pace.may_go(0)
    pace.leave(1)
    assert pace.may_go(0)


def test_a_new_worker_starts_where_the_slowest_is() -> None:
    pace = started(4, 2)
    for _ in range(3):
        pace.step(0)
    pace.step(1)
    assert pace.join(7) == 1


def test_a_round_waits_for_all_and_a_death_completes_it() -> None:
    pace = started(0, 3)
    pace.put(0, 0, "a")
    pace.put(2, 0, "c")
    assert rounds(pace) == []
    pace.leave(1)
    assert rounds(pace) == [[(0, "a"), (2, "c")]]
    assert pace.clocks == {0: 1, 2: 1}


def test_the_push_of_a_worker_that_died_afterwards_counts() -> None:
    pace = started(0, 2)
    pace.put(1, 0, "b")
    pace.leave(1)
    pace.put(0, 0, "a")
    assert rounds(pace) == [[(1, "b"), (0, "a")]]


def test_a_worker_without_a_batch_is_not_waited_for() -> None:
    pace = started(0, 2)
    pace.put(1, 0, None)
    assert rounds(pace) == []
    assert not pace.has_answer(1)
    pace.put(0, 0, "a")
    assert rounds(pace) == [[(0, "a")]]
    assert pace.clocks == {0: 1, 1: 1}
    pace.put(0, 1, None)
    pace.put(1, 1, None)
    assert rounds(pace) == []
    assert pace.clocks == {0: 2, 1: 2}


def test_backup_workers_are_dropped_when_they_are_late() -> None:
    pace = started(0, 3, backup=1)
    pace.put(0, 0, "a")
    assert rounds(pace) == []
    pace.put(2, 0, "c")
    assert rounds(pace) == [[(0, "a"), (2, "c")]]
    assert pace.is_late(1, 0)
    assert not pace.is_late(1, 1)


def test_workers_that_are_a_round_apart_after_a_restart_meet_again() -> None:
    pace: Pace[str] = Pace(0)
    pace.join(0, 5)  # had its answer before the server died
    pace.join(1, 4)
    pace.put(1, 4, "again")
    assert rounds(pace) == [[(1, "again")]]
    pace.put(1, 5, "b")
    pace.put(0, 5, "a")
    assert rounds(pace) == [[(1, "b"), (0, "a")]]
