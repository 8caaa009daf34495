"""What a stranger can hold of a process that listens: no memory, and few descriptors. Who has the key is served."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stranger
import zmq

from paceline.wire import channel
from paceline.wire.channel import FRAME, Door, frames_of, joined, trust

SILENT = 200  # connections
FIRST = 40  # more than are let in before they have proved a key
HELD = 100  # descriptors: far fewer


class Server:
    """Answers what it is sent."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.setsockopt(zmq.LINGER, 0)
        self.socket = self.context.socket(zmq.ROUTER)
        self._public, secret = zmq.curve_keypair()
        self.door = Door(self.socket, secret, "127.0.0.1", expected=1)

    def connected(self) -> zmq.Socket[bytes]:
        peer = self.context.socket(zmq.DEALER)
        trust(peer, self._public.decode())
        peer.connect(f"tcp://127.0.0.1:{self.door.port}")
        return peer

    def serve(self, peer: zmq.Socket[bytes], message: bytes) -> None:
        peer.send_multipart(frames_of(message))
        assert self.socket.poll(60_000)
        who, *frames = self.socket.recv_multipart()
        assert joined(frames) == message
        self.socket.send_multipart([who, *frames_of(b"yes")])
        assert peer.recv_multipart() == [b"yes"]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.door.close()
    found.context.destroy()


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
    monkeypatch.setattr(channel, "_HANDSHAKE", 0.2)
    monkeypatch.setattr(channel, "_PROBE", 0.1)
    server = Server()
    silent = stranger.come(server.door.port, 5)
    for each in silent:
        each.setblocking(True)
        while each.recv(64):
            pass  # the greeting; then the end
        each.close()
    until(lambda: server.door.strangers == 5)
    server.door.close()
    server.context.destroy()


def test_every_port_has_a_door() -> None:
    """Only doors listen, but for a socket in a private folder, and for what parameter servers add to their door."""
    source = Path(channel.__file__).parents[1]
    texts = {path.name: path.read_text() for path in source.rglob("*.py")}
    assert [name for name, text in texts.items() if "CURVE_SERVER," in text] == ["channel.py"]
    assert {name for name, text in texts.items() if re.search(r"wire.channel import .*\bguard\b", text)} == {
        "control.py",
        "keys.py",
    }
