"""What a stranger can hold of a process that listens: no memory, and few descriptors. Who has the key is served."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stranger

from paceline.wire import channel, door
from paceline.wire.channel import FRAME, Connection, Keys, Listener, frames_of, joined
from paceline.wire.door import Door

SILENT = 200  # connections
FIRST = 40  # more than are let in before they have proved a key
HELD = 100  # descriptors: far fewer


class Server:
    """Answers what it is sent."""

    def __init__(self) -> None:
        self.listener = Listener(Keys.make(), "127.0.0.1", expected=1)

    @property
    def door(self) -> Door:
        assert self.listener._door is not None
        return self.listener._door

    def connected(self) -> Connection:
        return Connection(self.listener.place, *self.listener.access)

    def serve(self, peer: Connection, message: bytes) -> None:
        peer.send(frames_of(message))
        assert self.listener.socket.poll(60_000)
        ((who, frames),) = self.listener.receive()
        assert joined(frames) == message
        self.listener.send(who, frames_of(b"yes"))
        assert peer.socket.poll(60_000)
        assert list(peer.receive()) == [[b"yes"]]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.listener.close()


def until(so: Callable[[], bool]) -> None:
    by = time.monotonic() + 60
    while not so():
        assert time.monotonic() < by
        time.sleep(0.01)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 1, FRAME, FRAME + 1, 5 * FRAME + 3])
def test_a_message_of_any_size_arrives(server: Server, size: int) -> None:
    peer = server.connected()
    server.serve(peer, os.urandom(size))
    peer.close()


def test_what_a_stranger_sends_is_not_kept(server: Server) -> None:
    assert stranger.pour(server.door.port) < stranger.ENOUGH
    until(lambda: server.door.strangers == 1)


@pytest.mark.slow  # the kernel repeats connections that it dropped after seconds; below, five strangers have to go
def test_few_silent_strangers_are_let_in_and_who_has_the_key_is_served(server: Server) -> None:
    first = server.connected()
    server.serve(first, b"before")
    before = descriptors()
    silent = stranger.come(server.door.port, FIRST)
    until(lambda: server.door._closed)
    silent += stranger.come(server.door.port, SILENT - FIRST)
    assert descriptors() - before - SILENT < HELD
    server.serve(first, b"meanwhile")
    for each in silent:
        each.close()
    second = server.connected()
    server.serve(second, b"after")
    for peer in (first, second):
        peer.close()


def test_silent_strangers_have_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are counted; those that only look whether the port can be reached are not."""
    monkeypatch.setattr(door, "_HANDSHAKE", 0.2)
    monkeypatch.setattr(door, "_PROBE", 0.1)
    server = Server()
    silent = stranger.come(server.door.port, 5)
    for each in silent:
        each.setblocking(True)
        while each.recv(64):
            pass  # the greeting; then the end
        each.close()
    until(lambda: server.door.strangers == 5)
    server.listener.close()


def test_a_message_without_the_token_is_not_heard(server: Server) -> None:
    guessing = Connection(server.listener.place, server.listener.access.key, "guessed")
    guessing.send([b"let me in"])
    until(lambda: bool(server.listener.socket.poll(100)))
    assert list(server.listener.receive()) == []
    assert server.listener.refused == 1
    peer = server.connected()
    server.serve(peer, b"here")
    for each in (guessing, peer):
        each.close()


def test_a_peer_that_is_gone_is_no_error(server: Server) -> None:
    peer = server.connected()
    peer.send([b"here"])
    until(lambda: bool(server.listener.socket.poll(100)))
    ((who, _),) = server.listener.receive()
    assert server.listener.send(who, [b"yes"])
    peer.close()
    until(lambda: not server.listener.send(who, [b"still there?"]))


def test_there_is_one_channel() -> None:
    """No other file speaks ZeroMQ's handshake."""
    source = Path(channel.__file__).parents[1]
    texts = {path.name: path.read_text() for path in source.rglob("*.py")}
    assert [name for name, text in texts.items() if "CURVE_SERVER" in text] == ["channel.py"]
