"""Letters between workers whose connection breaks: all of them arrive, and each counts once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import stranger
import torch
from relay import Relay

from paceline.comm.elastic_channel import Letters

DATA, DONE = 0, 2
ROUNDS = 6


class Board:
    """A store for the workers of this process. `way[reader, writer]`: the port at which the one reaches the other."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, 20)
            return self._values[key]


class Led(Board):
    """A view of a board in which all addresses lead through a relay."""

    def __init__(self, board: Board, relay: Relay) -> None:
        self._board, self._relay = board, relay

    def set(self, key: str, value: str) -> None:
        self._board.set(key, value)

    def get(self, key: str) -> bytes:
        place, rest = self._board.get(key).decode().split(" ", 1)
        self._relay.target = int(place.rpartition(":")[2])
        return f"tcp://127.0.0.1:{self._relay.port} {rest}".encode()


@pytest.fixture
def relay() -> Iterator[Relay]:
    found = Relay()
    yield found
    found.close()


def patient() -> Callable[[], None]:
    by = time.monotonic() + 20

    def look() -> None:
        assert time.monotonic() < by, "a letter is lost"

    return look


def exchange(board: Board, rank: int, before: Callable[[int, int], None], size: int) -> list[float]:
    letters, found = Letters(board, rank, 2, address="127.0.0.1", look=patient()), list[float]()
    try:
        for number in range(1, ROUNDS + 1):
            own = torch.full((size,), number * 10.0 + rank).view(torch.uint8)
            before(number, DATA)
            letters.post(1 - rank, number, DATA, b"sum", own)
            found.append(letters.collect(number, DATA)[1 - rank].data.view(torch.float32)[-1].item())
            before(number, DONE)
            letters.post(1 - rank, number, DONE, b"")
            letters.collect(number, DONE)
            letters.arrived()
        assert letters._came == {}
        return found
    finally:
        letters.bid_farewell()


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("at", [(2, DATA), (3, DONE), (5, DATA)])
def test_what_was_lost_with_a_connection_is_sent_again(relay: Relay, at: tuple[int, int], size: int) -> None:
    """Worker 0 sends through a relay, which loses one message and resets the connection."""
    board = Board()

    def break_off(number: int, phase: int) -> None:
        if (number, phase) == at:
            relay.break_off()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(exchange, Led(board, relay), 0, break_off, size)
        second = threads.submit(exchange, board, 1, lambda number, phase: None, size)
        assert first.result(60) == [number * 10.0 + 1 for number in range(1, ROUNDS + 1)]
        assert second.result(60) == [number * 10.0 for number in range(1, ROUNDS + 1)]
    assert relay.broken == 1


def test_a_letter_that_is_not_needed_is_not_waited_for() -> None:
    """The last letter of a worker that has ended was lost, but the store knows how far that worker came."""
    board, asked = Board(), list[int]()

    def has_ended() -> bool:
        asked.append(1)
        return True

    def wait(rank: int) -> None:
        letters = Letters(board, rank, 2, address="127.0.0.1", look=patient())
        if rank == 0:
            letters.collect(1, DONE, or_so=has_ended)
        letters.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(wait, (0, 1)))
    assert asked == [1]


def test_strangers_take_no_memory_of_a_worker() -> None:
    letters = Letters(board := Board(), 0, 1, address="127.0.0.1", look=patient())
    place = board.get("letters0").decode().split()[0]
    assert stranger.pour(int(place.rpartition(":")[2])) < stranger.ENOUGH
    letters.close()
