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
import time
from typing import Any

import zmq

from paceline import threads
from paceline.comm.hosts import address_towards
from paceline.horovod.engine.membership import Membership
from paceline.wire.channel import BEAT, Connection, Keys, Listener
from paceline.wire.link import LinkStore

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
HELLO, WELCOME, DATA, HERE, BYE = (bytes([number]) for number in range(5))


class LineClosed(Exception):
    """The process at the other end has ended, or has closed the line."""


class Line:
    """One connection. One thread uses it. A message is bytes of any length."""

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
    """Carries the bytes of this rank's lines over one channel, in a thread of its own: to a line it looks like a pair
    of sockets of this process. Rank 0 listens. When a rank ends, its line is closed on the other side."""

    def __init__(self, channel: Listener | Connection, ranks: range, *, rank: int) -> None:
        """`ranks`: those at the other ends. `rank`: this one."""
        self._channel, self._rank = channel, rank
        self._monitor = None if isinstance(channel, Listener) else channel.monitor
        pairs = {other: socket.socketpair() for other in ranks}
        self._lines = {other: CarriedLine(own, self) for other, (own, _) in pairs.items()}
        self._ends = {other: end for other, (_, end) in pairs.items()}
        for end in self._ends.values():
            end.setblocking(False)
        self._undelivered = {other: bytearray() for other in ranks}  # what came for a line that is not being read
        self._over: set[int] = set()  # ranks that have ended, and whose last bytes are undelivered
        self._peers: dict[int, bytes] = {}  # how to send to a rank that has come
        self._complete, self._users = threading.Event(), len(pairs)
        self._poller = zmq.Poller()

    def lines(self) -> dict[int, Line]:
        """Waits until all ranks have come."""
        self._thread = threads.start("lines of horovod", self._serve)
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
            self._thread.join(timeout=3)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        for source in (self._channel.socket, *([self._monitor] if self._monitor is not None else [])):
            self._poller.register(source, zmq.POLLIN)
        ranks = {end.fileno(): other for other, end in self._ends.items()}
        for descriptor in ranks:
            self._poller.register(descriptor, zmq.POLLIN)
        beat_at = 0.0
        while self._ends:
            for source, what in self._poller.poll(int(1000 * BEAT)):
                if source is self._channel.socket:
                    self._receive()
                elif isinstance(self._channel, Connection) and source is self._monitor:
                    if any(self._channel.events()) and self._complete.is_set():  # until then ZeroMQ connects again
                        self._end(0)
                else:
                    self._at_line(ranks[source], what)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT
                self._beat()
        self._channel.close(linger=2000)

    def _beat(self) -> None:
        """By this rank 0 learns which ranks are gone. Another rank says that it is here, until it is welcome."""
        if isinstance(self._channel, Listener):
            for other in list(self._peers) if self._complete.is_set() else ():
                self._send(other, HERE)
        elif not self._complete.is_set():
            self._channel.send([HELLO, _LENGTH.pack(self._rank)])

    def _send(self, other: int, kind: bytes, data: bytes = b"") -> None:
        if isinstance(self._channel, Connection):
            self._channel.send([kind, data])
        elif not self._channel.send(self._peers[other], [kind, data]):
            self._end(other)

    def _receive(self) -> None:
        if isinstance(self._channel, Connection):
            for frames in self._channel.receive():
                self._take(b"", *frames)
        else:
            for peer, frames in self._channel.receive():
                self._take(peer, *frames)

    def _take(self, peer: bytes, kind: memoryview, data: memoryview) -> None:
        other = next((other for other, known in self._peers.items() if known == peer), None)
        if kind == HELLO:
            self._welcome(peer, data)
        elif kind == WELCOME:
            self._peers[0] = b""
            self._complete.set()
        elif kind == DATA and other in self._ends:
            self._undelivered[other] += data
            self._deliver(other)
        elif kind == BYE and other is not None:
            self._end(other)

    def _welcome(self, peer: bytes, data: memoryview) -> None:
        (other,) = _LENGTH.unpack(data)
        if other in self._ends and not self._complete.is_set():
            self._peers[other] = peer
            if len(self._peers) == len(self._ends):  # none of them sends more before all are here to read
                self._complete.set()
                for each in list(self._peers):
                    self._send(each, WELCOME)

    def _at_line(self, other: int, what: int) -> None:
        """Something can be read from a line, or written to it."""
        if what & zmq.POLLOUT and other in self._ends:
            self._deliver(other)
        if (end := self._ends.get(other)) is not None and what & ~zmq.POLLOUT:
            try:
                data = end.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if other in self._peers:
                self._send(other, DATA if data else BYE, data)
            if not data:
                self._close(other)

    def _deliver(self, other: int) -> None:
        """Never waits: while nobody reads here, what is sent there goes on."""
        end, rest = self._ends[other], self._undelivered[other]
        try:
            while rest:
                del rest[: end.send(bytes(rest[:_CHUNK]))]
        except BlockingIOError:
            pass
        except OSError:  # the line was closed here
            rest.clear()
            self._over.add(other)
        if other in self._over and not rest:
            self._close(other)
        else:
            self._poller.register(end.fileno(), zmq.POLLIN | (zmq.POLLOUT if rest else 0))

    def _end(self, other: int) -> None:
        """The rank has ended, or its connection: its line is closed once everything was read."""
        self._peers.pop(other, None)
        if other in self._ends:
            self._over.add(other)
            self._deliver(other)

    def _close(self, other: int) -> None:
        self._peers.pop(other, None)
        if (end := self._ends.pop(other, None)) is not None:
            self._poller.unregister(end.fileno())
            end.close()


class CarriedLine(Line):
    """A line to a rank on another host."""

    def __init__(self, connected: socket.socket, carrier: Carrier) -> None:
        super().__init__(connected)
        self._carrier = carrier

    def close(self) -> None:
        super().close()
        self._carrier.release()
