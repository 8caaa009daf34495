"""The connections between rank 0 and every other rank, for negotiation only: tensors take other ways.

On one host under Paceline's launcher, a line is a pair of connected sockets that rank 0 makes and hands over through
the launcher: no port is opened. Otherwise rank 0 listens at a port, everything there is encrypted, and the others prove
with a key and a token from the run's store that they belong to the run.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from typing import Any

import zmq

from paceline.comm.hosts import address_towards
from paceline.horovod.engine.membership import Membership
from paceline.threads import Bell
from paceline.wire.channel import Connection, Keys, Listener, Loop, frames_of, joined
from paceline.wire.link import LinkStore

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
HELLO, WELCOME, DATA, HERE, BYE = (bytes([number]) for number in range(5))


class LineClosed(Exception):
    """The process at the other end has ended, or has closed the line."""


class Line:
    """A connection to another rank, on this host. One thread uses it. A message is bytes of any length."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._came = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Sends a message. While the other end is busy, what comes from there is read: two ends that send much at the
        same time do not wait for each other."""
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                ready, _, _ = select.select([self._socket], [self._socket], [])
                if ready:
                    self._read()
            except OSError as error:
                raise LineClosed from error

    def receive(self) -> list[bytes]:
        """The messages that have come, without waiting. Messages that came before the end are not lost: `LineClosed` is
        raised by the next call."""
        try:
            self._read()
        except LineClosed:
            if not (found := self._cut()):
                raise
            return found
        return self._cut()

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                raise LineClosed from error
            if not chunk:
                raise LineClosed
            self._came += chunk
            if len(chunk) < _CHUNK:
                return

    def _cut(self) -> list[bytes]:
        found, at = [], 0
        while len(self._came) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._came, at)
            if len(self._came) - at - _LENGTH.size < length:
                break
            found.append(bytes(self._came[at + _LENGTH.size : at + _LENGTH.size + length]))
            at += _LENGTH.size + length
        del self._came[:at]
        return found


def connect(store: Any, member: Membership) -> dict[int, Line]:
    """Rank 0's lines to every other rank, or another rank's line to rank 0, by rank. Every rank calls it."""
    if isinstance(store, LinkStore) and member.is_one_host:
        return _through_launcher(store, member)
    return _listen(store, member) if member.rank == 0 else _dial(store, member)


def _through_launcher(store: LinkStore, member: Membership) -> dict[int, Line]:
    if member.rank:
        line = Line(socket.socket(fileno=store.take(f"line{member.rank}")))
        store.delete_key(f"line{member.rank}")
        return {0: line}
    lines = {}
    for rank in range(1, member.size):
        own, other = socket.socketpair()
        store.give(f"line{rank}", other.fileno())
        other.close()
        lines[rank] = Line(own)
    return lines


def _listen(store: Any, member: Membership) -> dict[int, Line]:
    settings = member.settings
    address = settings.address or address_towards(settings.store_host, settings.store_port)
    listener = Listener(Keys.make(), address, expected=member.size)
    store.set("lines", " ".join((listener.place, *listener.access)))
    return Carrier(listener, range(1, member.size), rank=0).lines()


def _dial(store: Any, member: Membership) -> dict[int, Line]:
    connection = Connection(*bytes(store.get("lines")).decode().split(), events=zmq.EVENT_DISCONNECTED)
    return Carrier(connection, range(1), rank=member.rank).lines()


class Carrier:
    """Carries this rank's lines over one channel, in a thread of its own. Rank 0 listens. When a rank ends, its line is
    closed on the other side."""

    def __init__(self, channel: Listener | Connection, ranks: range, *, rank: int) -> None:
        """`ranks`: those at the other ends. `rank`: this one."""
        self._channel, self._rank = channel, rank
        self._lines = {other: CarriedLine(other, self) for other in ranks}
        self._peers: dict[int, bytes] = {}  # how to send to a rank that has come
        self._complete, self._users = threading.Event(), len(self._lines)
        self.loop = Loop[tuple[int, bytes | None]](
            "lines of horovod",
            lambda: (channel.socket, *(() if isinstance(channel, Listener) else (channel.monitor,))),
            turn=self._receive,
            beat=self._beat,
            send=lambda posted: self._pass_on(*posted),
            end=self._end_all,
        )

    def lines(self) -> dict[int, Line]:
        """Waits until all ranks have come."""
        self.loop.start()
        try:
            while not self._complete.wait(1.0):
                pass
        except BaseException:  # Ctrl-C
            for line in self._lines.values():
                line.close()
            raise
        return dict(self._lines)

    def release(self) -> None:
        """A line was closed. With the last one, waits until what it has sent has left this process, 3 s at most."""
        self._users -= 1
        if not self._users:
            self.loop.close(timeout=3)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """By this rank 0 learns which ranks are gone. Another rank says that it is here, until it is welcome."""
        if isinstance(self._channel, Listener):
            for other in list(self._peers) if self._complete.is_set() else ():
                self._send(other, HERE)
        elif not self._complete.is_set():
            self._channel.send([HELLO, _LENGTH.pack(self._rank)])

    def _send(self, other: int, kind: bytes, message: bytes = b"") -> None:
        frames = [kind, *frames_of(message)]
        if isinstance(self._channel, Connection):
            self._channel.send(frames)
        elif not self._channel.send(self._peers[other], frames):
            self._end(other)

    def _pass_on(self, other: int, message: bytes | None) -> None:
        """What was sent over a line of this rank; None: the line was closed."""
        if other in self._peers:
            self._send(other, BYE if message is None else DATA, message or b"")
        if message is None:
            self._peers.pop(other, None)

    def _receive(self) -> None:
        if isinstance(self._channel, Listener):
            for peer, (kind, *data) in self._channel.receive():
                self._take(peer, kind, data)
            return
        for kind, *data in self._channel.receive():
            self._take(b"", kind, data)
        if any(self._channel.events()) and self._complete.is_set():  # until then ZeroMQ connects again by itself
            self._end(0)

    def _take(self, peer: bytes, kind: memoryview, data: list[memoryview]) -> None:
        other = next((other for other, known in self._peers.items() if known == peer), None)
        if kind == HELLO:
            (new,) = _LENGTH.unpack(joined(data))
            if new in self._lines and not self._complete.is_set():
                self._peers[new] = peer
                if len(self._peers) == len(self._lines):  # none of them sends more before all are here to read
                    self._complete.set()
                    for each in list(self._peers):
                        self._send(each, WELCOME)
        elif kind == WELCOME:
            self._peers[0] = b""
            self._complete.set()
        elif kind == DATA and other is not None:
            self._lines[other].take(joined(data))
        elif kind == BYE and other is not None:
            self._end(other)

    def _end(self, other: int) -> None:
        """The rank has ended, or its connection."""
        if self._peers.pop(other, None) is not None:
            self._lines[other].take(None)

    def _end_all(self) -> None:
        self._channel.close(linger=2000)
        for line in self._lines.values():
            line.bell.close()


class CarriedLine(Line):
    """A line to a rank on another host."""

    def __init__(self, other: int, carrier: Carrier) -> None:
        self._other, self._carrier = other, carrier
        self.bell = Bell()  # rings when something has come
        self._messages: deque[bytes] = deque()
        self._is_over = False

    def fileno(self) -> int:
        return self.bell.fileno()

    def send(self, message: bytes) -> None:
        if self._is_over:
            raise LineClosed
        self._carrier.loop.post((self._other, message))

    def receive(self) -> list[bytes]:
        self.bell.clear()
        is_over, found = self._is_over, [self._messages.popleft() for _ in range(len(self._messages))]
        if is_over:
            self.bell.ring()
            if not found:
                raise LineClosed
        return found

    def take(self, message: bytes | None) -> None:
        """From the carrier's thread. None: nothing more will come."""
        if message is None:
            self._is_over = True
        else:
            self._messages.append(message)
        self.bell.ring()

    def close(self) -> None:
        self._carrier.loop.post((self._other, None))
        self._carrier.release()
