"""An agent's line to its controller, and the way on for its workers' requests to the store of the run."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from paceline import threads
from paceline.comm.pulse import BEAT
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.facts import NO_ANSWER, connect_all
from paceline.launch.processes import state_of
from paceline.settings import ssh_client
from paceline.wire import store as say
from paceline.wire.channel import frames_of, joined, trust
from paceline.wire.connections import Connections
from paceline.wire.sequence import Sequence as Numbered
from paceline.wire.store import Value, Values

WAIT = 45.0  # seconds for the controller to answer: for so long strangers may hold its port
TRY = 2.0  # seconds of one try: the kernel itself tries again ever more rarely
STUCK = 60.0  # seconds that the agent's loop may wait for a disk or a device, before the host is called silent


class NoController(Exception):
    """The controller cannot be reached."""


class Line:
    """The agent's side. A thread of its own serves the socket and sends heartbeats: the controller hears this host
    whatever the agent's loop waits for. Only the agent's main thread uses the methods."""

    def __init__(self, boot: wire.Boot) -> None:
        """Raises NoController if no address of the controller answers."""
        self._boot = boot
        self.address = _reachable(boot)
        self.pids: Sequence[int] = ()  # of the workers: heartbeats tell their states
        self._context = zmq.Context()
        self._socket, self._connections = dealer(self._context, boot, boot.port, self.address)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rings when a message has come
        self._came: deque[wire.ToAgent] = deque()
        self._outbox: deque[wire.FromAgent] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = self._suspended = False
        self._heard = self._looked = self._turned = time.monotonic()
        self._messages: Numbered[wire.FromAgent] = Numbered()
        self._decoder = msgspec.msgpack.Decoder(wire.Order)
        self._thread = threads.start("line to the controller", self._serve)

    @property
    def silence(self) -> float:
        """Seconds since the controller was last heard; 0 while it is stopped, and has said so."""
        return 0.0 if self._suspended else self._looked - self._heard

    def send(self, message: wire.FromAgent) -> None:
        self._outbox.append(message)
        os.eventfd_write(self._wake, 1)

    def receive(self) -> list[wire.ToAgent]:
        """All messages that have arrived; never waits. To be called again and again: without, heartbeats end."""
        self._turned = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)
        return [self._came.popleft() for _ in range(len(self._came))]

    def close(self) -> None:
        """Sends what is left; waits 5 s at most."""
        self._over = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._context.term()
        for bell in (self.bell, self._wake):
            os.close(bell)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poller, beat_at = zmq.Poller(), math.inf
        for source in (self._socket, self._wake):
            poller.register(source, zmq.POLLIN)
        while not self._over or self._outbox:
            if self._wake in dict(poller.poll(int(1000 * BEAT))):
                os.eventfd_read(self._wake)
            self._take()
            while self._outbox:
                message = self._outbox.popleft()
                self._send(message, self._messages.add(message))
                beat_at = min(beat_at, self._looked)  # from the agent's first word on
            if self._looked >= beat_at and self._looked - self._turned < STUCK:
                beat_at = self._looked + BEAT
                states = wire.States("".join(state_of(pid) or "-" for pid in self.pids))
                self._send(states, self._messages.add(states))
        self._connections.close()
        self._socket.close(linger=5000)

    def _take(self) -> None:
        while self._socket.poll(0):
            order = self._decoder.decode(joined(self._socket.recv_multipart()))
            self._heard = time.monotonic()
            if self._messages.accepts(order.place, order.heard):
                self._suspended = isinstance(order.message, wire.Suspended)
                self._came.append(order.message)
                os.eventfd_write(self.bell, 1)
        self._looked = time.monotonic()
        # What the controller may not have heard, if the connection was made anew.
        for place, message in self._messages.unheard() if self._connections.were_renewed() else ():
            self._send(message, place)

    def _send(self, message: wire.FromAgent, place: int) -> None:
        envelope = wire.Envelope(self._boot.token, self._boot.number, message, place, self._messages.heard)
        self._socket.send_multipart(frames_of(msgspec.msgpack.encode(envelope)))


class PassedOn:
    """Answers the requests of this host's workers: keeps their descriptors, which cannot leave the host, and asks the
    controller for everything else. Called from one thread, that of the link server."""

    def __init__(self, boot: wire.Boot, address: str) -> None:
        self._token, self._me, self._here = boot.token, secrets.token_hex(8), Values()
        self._context = zmq.Context()
        self._socket, self._connections = dealer(self._context, boot, boot.store_port, address)
        self._decoder, self._asked = msgspec.msgpack.Decoder(wire.StoreTold), 0
        self._over = threading.Event()

    def do(self, ask: say.Ask, came: list[int]) -> tuple[Value, list[int]]:
        if isinstance(ask, say.Set) and came:
            return self._here.do(ask, came)
        if isinstance(ask, say.Get):
            value, descriptors = self._here.do(ask, [])
            if value is not None:
                return value, descriptors
        if isinstance(ask, say.Delete) and self._here.do(ask, [])[0]:
            return 1, []
        self._asked += 1
        question = frames_of(msgspec.msgpack.encode(wire.StoreAsk(self._token, self._me, self._asked, ask)))
        self._socket.send_multipart(question)
        while True:
            if self._socket.poll(200):
                answer = self._decoder.decode(joined(self._socket.recv_multipart()))
                if answer.place == self._asked:
                    if answer.told.problem:
                        raise ValueError(answer.told.problem)
                    return answer.told.value, []
            elif self._over.is_set():
                raise EOFError
            if self._connections.were_renewed():
                self._socket.send_multipart(question)

    def stop(self) -> None:
        """From now on a request that waits for the controller fails."""
        self._over.set()

    def close(self) -> None:
        self._connections.close()
        self._socket.close(linger=0)
        self._context.term()
        self._here.close()


def dealer(context: Any, boot: wire.Boot, port: int, address: str) -> tuple[Any, Connections]:
    """A socket to the controller."""
    socket = context.socket(zmq.DEALER)
    trust(socket, boot.key)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    connections = Connections(socket)
    socket.connect(f"tcp://{address}:{port}")
    return socket, connections


def _reachable(boot: wire.Boot) -> str:
    came_from = ssh_client()
    addresses = tuple(dict.fromkeys((came_from, *boot.addresses) if came_from else boot.addresses))
    by, failures = time.monotonic() + WAIT, ("",) * len(addresses)
    while time.monotonic() < by:
        failures = connect_all([("0.0.0.0", address, boot.port) for address in addresses], TRY)
        for address, failure in zip(addresses, failures, strict=True):
            if not failure:
                return address
        if NO_ANSWER not in failures:
            break
    tried = ", ".join(f"{address} ({why})" for address, why in zip(addresses, failures, strict=True))
    raise NoController(f"port {boot.port} of the host where the run was started: {tried}")
