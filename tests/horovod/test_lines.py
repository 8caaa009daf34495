"""Lines between hosts: encrypted, open to nobody else, and closed when their rank ends."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import stranger
import torch.distributed as dist
from relay import Relay

from paceline.horovod.engine.lines import Line, LineClosed, connect

SILENT = 20  # strangers: each held up the ranks for 10 s


class Board:
    """The store, as the other ranks see it: the way to rank 0 leads through a relay."""

    def __init__(self, relay: Relay) -> None:
        self._store, self._relay, self.port = dist.HashStore(), relay, 0

    def set(self, key: str, value: str) -> None:
        place, rest = value.split(" ", 1)
        self.port = self._relay.target = int(place.rpartition(":")[2])
        self.on_listening()
        self._store.set(key, f"tcp://127.0.0.1:{self._relay.port} {rest}")

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def on_listening(self) -> None:
        """Before any rank knows where rank 0 listens."""


class Listening(Relay):
    """Keeps all that passes."""

    def __init__(self) -> None:
        self.heard = b""
        super().__init__()

    def _pass_on(self, sender: socket.socket) -> None:
        relay = self

        class Heard(socket.socket):
            def recv(self, *args: Any) -> bytes:
                data = super().recv(*args)
                relay.heard += data
                return data

        super()._pass_on(Heard(fileno=sender.detach()))


@pytest.fixture
def relay() -> Iterator[Listening]:
    found = Listening()
    yield found
    found.close()


def connected(board: Board, size: int) -> list[dict[int, Line]]:
    def one(rank: int) -> dict[int, Line]:
        settings = SimpleNamespace(address="127.0.0.1")
        member: Any = SimpleNamespace(rank=rank, size=size, is_one_host=False, settings=settings)
        return connect(board, member)

    with ThreadPoolExecutor(size) as ranks:
        return [came.result(60) for came in [ranks.submit(one, rank) for rank in range(size)]]


def receive(line: Line) -> bytes:
    while not (found := line.receive()):
        assert select.select([line], [], [], 60)[0], "nothing comes"
    (message,) = found
    return message


def ended(line: Line) -> bool:
    while select.select([line], [], [], 60)[0]:
        try:
            line.receive()
        except LineClosed:
            return True
    return False


def close(ranks: list[dict[int, Line]]) -> None:
    for lines in ranks:
        for line in lines.values():
            line.close()


def test_messages_go_both_ways_and_nobody_can_read_them(relay: Listening) -> None:
    ranks = connected(Board(relay), 3)
    for other in (1, 2):
        ranks[other][0].send(b"layer.weight of rank %d" % other)
        ranks[0][other].send(b"layer.weight is agreed" * 50_000)
    for other in (1, 2):
        assert receive(ranks[0][other]) == b"layer.weight of rank %d" % other
        whole = b""
        while not whole:
            whole = receive(ranks[other][0])
        assert whole == b"layer.weight is agreed" * 50_000
    assert relay.heard
    assert b"layer.weight" not in relay.heard
    close(ranks)


@pytest.mark.parametrize("ends", [0, 1])
def test_a_rank_that_ends_closes_its_lines(relay: Listening, ends: int) -> None:
    ranks = connected(Board(relay), 3)
    ranks[ends].pop(1 - ends).close()
    if ends == 0:
        ranks[0].pop(2).close()
        assert ended(ranks[1][0])
        assert ended(ranks[2][0])
    else:
        assert ended(ranks[0][1])
        ranks[0][2].send(b"go on")
        assert receive(ranks[2][0]) == b"go on"
    close(ranks)


def test_a_connection_that_breaks_is_the_end_of_a_line(relay: Listening) -> None:
    """As when a rank is killed."""
    ranks = connected(Board(relay), 2)
    relay.break_off()
    ranks[1][0].send(b"lost")
    assert ended(ranks[0][1])
    assert ended(ranks[1][0])
    close(ranks)


def test_silent_strangers_hold_nobody_up(relay: Listening) -> None:
    board, silent = Board(relay), list[socket.socket]()
    board.on_listening = lambda: silent.extend(stranger.come(board.port, SILENT))  # type: ignore[method-assign]
    ranks = connected(board, 2)
    ranks[1][0].send(b"here")
    assert receive(ranks[0][1]) == b"here"
    close(ranks)
    for each in silent:
        each.close()
