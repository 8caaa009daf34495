"""Authenticated channels between processes of a run: ZeroMQ sockets that speak CURVE, and a token in every message.

A `Listener` holds `Keys`. A peer makes a `Connection` with the public key and the token, which it was told in a way
that only processes of the run can read. A message is a row of bytes, cut into frames. A connection that breaks is made
again by ZeroMQ, which does not send again what was on its way: `Sequence` does. A `Loop` is a thread that serves
sockets and sends heartbeats, whatever the other threads of its process wait for.

Does not import torch, because the launcher imports this module, too.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from paceline import threads
from paceline.threads import Bell
from paceline.wire.door import Door, place_of

BEAT = 0.5  # seconds between two heartbeats of any process of a run
LOST = 10.0  # seconds without one, after which a host, or the controller, is lost
FRAME = 256 << 10  # bytes of a frame
_ENCRYPTED = 1024  # bytes by which encryption makes a frame longer, at most
_CONNECT = 2.0  # seconds of one try: while a port is closed, the kernel itself tries again ever more rarely

Message = TypeVar("Message")


class Access(NamedTuple):
    """What a peer needs to speak with a listener."""

    key: str
    token: str


@dataclass(frozen=True)
class Keys:
    """What a listener holds: its CURVE keys, and the token of those that may speak with it."""

    public: str
    private: str = field(repr=False)
    token: str = field(repr=False)

    @classmethod
    def make(cls) -> Keys:
        public, private = zmq.curve_keypair()
        return cls(public.decode(), private.decode(), secrets.token_urlsafe(24))

    @property
    def access(self) -> Access:
        return Access(self.public, self.token)


def frames_of(message: Any) -> list[Any]:
    """The frames of a message, which is a row of bytes; a message of no bytes has one."""
    whole = memoryview(message)
    return [whole[at : at + FRAME] for at in range(0, whole.nbytes, FRAME)] or [b""]


def joined(frames: Iterable[Any]) -> bytes:
    """The message of these frames."""
    return b"".join(frames)


class Listener:
    """A socket for peers that have access. One thread uses it."""

    def __init__(self, keys: Keys, address: str = "", port: int = 0, *, expected: int = 1, path: str = "") -> None:
        """Listens at a TCP port of this address (0: any port), at the path of a Unix socket, or at both. `expected`:
        how many peers may connect to the port at once. OSError or ZMQError if nobody can listen there."""
        self.access, self._token = keys.access, keys.token.encode()
        self.refused = 0  # messages without the token
        self._context = zmq.Context()
        self.socket: Any = self._context.socket(zmq.ROUTER)
        self._door: Door | None = None
        _limit(self.socket, zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a peer that is gone is an error
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.private.encode())
        try:
            if path:
                self.socket.bind(path)
            if address:
                self._door = Door(self.socket, address, port, expected=expected)
        except BaseException:
            self.close()
            raise
        self.port = self._door.port if self._door is not None else 0
        self.place = place_of(address, self.port) if address else path

    @property
    def strangers(self) -> int:
        """How many connections to the port came from processes without the key."""
        return 0 if self._door is None else self._door.strangers

    def receive(self, *, copy: bool = True) -> Iterator[tuple[bytes, list[memoryview]]]:
        """The messages that have arrived with the token, each with its peer; never waits."""
        size = len(self._token)
        while (frames := _received(self.socket, copy)) is not None:
            peer, first, *rest = frames
            if hmac.compare_digest(first[:size], self._token):
                yield bytes(peer), [first[size:], *rest]
            else:
                self.refused += 1

    def send(self, peer: bytes, frames: Iterable[Any], *, copy: bool = True) -> bool:
        """Sends a message; False if the peer is gone."""
        try:
            self.socket.send_multipart([peer, *frames], copy=copy)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self, *, linger: int = 0) -> None:
        """Waits so many milliseconds for what was sent last."""
        if self._door is not None:
            self._door.close()
        self.socket.close(linger=linger)
        self._context.term()


class Connection:
    """A socket that connects to a listener, and connects again by itself. One thread uses it."""

    def __init__(
        self,
        place: str,
        key: str,
        token: str,
        *,
        context: Any = None,
        events: int = 0,
        options: Mapping[int, int] | None = None,
    ) -> None:
        """`context`: ZeroMQ's, if several sockets share one; the caller ends it. `events`: what to watch for, as
        ZeroMQ's monitors name it; `options` are ZeroMQ's, too."""
        self._token, self._made = token.encode(), 0
        self._own: Any = None if context else zmq.Context()
        within: Any = context or self._own
        self.socket: Any = within.socket(zmq.DEALER)
        public, private = zmq.curve_keypair()
        _limit(self.socket, zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, private)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, int(1000 * _CONNECT))
        self.socket.setsockopt(zmq.IPV6, int("[" in place))
        for option, value in (options or {}).items():
            self.socket.setsockopt(option, value)
        self.monitor: Any = self.socket.get_monitor_socket(events) if events else None
        self.socket.connect(place)

    def send(self, frames: Iterable[Any], *, copy: bool = True) -> None:
        """Sends a message, as soon as there is a connection; with the option IMMEDIATE, only if there is one."""
        first, *rest = frames
        try:  # in the first frame: another one would have to be encrypted by itself
            self.socket.send_multipart([self._token + bytes(first), *rest], zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            pass

    def receive(self, *, copy: bool = True) -> Iterator[list[memoryview]]:
        """The messages that have arrived; never waits."""
        while (frames := _received(self.socket, copy)) is not None:
            yield frames

    def events(self) -> Iterator[int]:
        """What has happened to the connection; never waits."""
        while self.monitor is not None and self.monitor.poll(0):
            yield recv_monitor_message(self.monitor)["event"]

    def was_renewed(self) -> bool:
        """Whether another connection than the first was made since the last call: what was on its way over the old one
        is lost, and ZeroMQ does not tell. Needs the event HANDSHAKE_SUCCEEDED, and no other."""
        before, self._made = self._made, self._made + sum(1 for _ in self.events())
        return self._made > max(before, 1)

    def close(self, *, linger: int = 0) -> None:
        """Waits so many milliseconds for what was sent last."""
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
        self.socket.close(linger=linger)
        if self._own is not None:
            self._own.term()


def _limit(socket: Any, *without: int) -> None:
    """`without`: options that are 0."""
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME + _ENCRYPTED)
    for option in without:
        socket.setsockopt(option, 0)


def _received(socket: Any, copy: bool) -> list[memoryview] | None:
    """Small frames are taken faster with a copy."""
    try:
        frames = socket.recv_multipart(zmq.NOBLOCK, copy=copy)
    except zmq.Again:
        return None
    return [memoryview(frame) if copy else frame.buffer for frame in frames]


class Sequence(Generic[Message]):
    """One side of a channel whose messages arrive once and in order, also if the connection is made anew. They are
    numbered from 1, and each tells how far this side has heard the other. What the other side has not heard is sent
    again over each new connection."""

    def __init__(self) -> None:
        self.heard = 0  # the number of the other side's last message
        self._sent = 0
        self._kept: deque[tuple[int, Message]] = deque()

    @property
    def waits(self) -> bool:
        """Whether the other side has not heard everything yet."""
        return bool(self._kept)

    def add(self, message: Message) -> int:
        """The number of a message that is sent now."""
        self._sent += 1
        self._kept.append((self._sent, message))
        return self._sent

    def unheard(self) -> Iterator[tuple[int, Message]]:
        """What to send over a new connection."""
        return iter(list(self._kept))

    def accepts(self, number: int, heard: int) -> bool:
        """Whether a message of the other side, which has heard so many, counts: not one that has come before, and none
        that comes after one that is missing, because both are sent again."""
        while self._kept and self._kept[0][0] <= heard:
            self._kept.popleft()
        if number != self.heard + 1:
            return False
        self.heard = number
        return True


class Loop(Generic[Message]):
    """A thread of its own that serves sockets, and beats whatever the other threads wait for."""

    def __init__(
        self,
        name: str,
        sockets: Callable[[], Iterable[Any]],
        *,
        turn: Callable[[], None],
        beat: Callable[[], None],
        end: Callable[[], None],
        send: Callable[[Message], None] = lambda message: None,
    ) -> None:
        """All are called in the thread: `sockets` makes them, `turn` takes what has come, now and then without need;
        `send` sends what another thread has posted; `end` closes the sockets."""
        self._name, self._sockets, self._bell = name, sockets, Bell()
        self._turn, self._beat, self._send, self._end = turn, beat, send, end
        self.posted: deque[Message] = deque()
        self._over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threads.start(self._name, self._serve)

    def post(self, message: Message) -> None:
        """Any thread may call it; after `close` nothing is sent."""
        if not self._over:
            self.posted.append(message)
            self._bell.ring()

    def close(self, timeout: float | None = None) -> None:
        """Ends the thread after what it still has to send; waits so many seconds at most."""
        assert self._thread is not None
        self._over = True
        self._bell.ring()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._bell.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (*self._sockets(), self._bell.fileno()):
            poller.register(source, zmq.POLLIN)
        beat_at = 0.0
        while self.posted or not self._over:
            while self.posted:
                self._send(self.posted.popleft())
            if (now := time.monotonic()) >= beat_at:
                beat_at = now + BEAT
                self._beat()
            # Longer than until the next beat: agents beat when they hear the controller's beat, which then hears all of
            # them at once, and need not turn for each.
            if self._bell.fileno() in dict(poller.poll(int(1000 * BEAT))):
                self._bell.clear()
            self._turn()
        self._end()
