"""An agent's line to its controller, and the way on for its workers' requests to the store of the run."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.facts import NO_ANSWER, connect_all
from paceline.launch.processes import state_of
from paceline.settings import ssh_client
from paceline.wire import channel, store
from paceline.wire.channel import Bell, Connection, Loop, frames_of, joined

WAIT = 45.0  # seconds for the controller to answer: for so long strangers may hold its port
TRY = 2.0  # seconds of one try: the kernel itself tries again ever more rarely
STUCK = 60.0  # seconds that the agent's loop may wait for a disk or a device, before the host is called silent


class NoController(Exception):
    """The controller cannot be reached."""


class Line:
    """The agent's side. The controller hears this host whatever the agent's main thread waits for, which alone uses the
    methods, except `ask`."""

    def __init__(self, boot: wire.Boot) -> None:
        """Raises NoController if no address of the controller answers."""
        self._number = boot.number
        self.address = _reachable(boot)
        self.pids: Sequence[int] = ()  # of the workers: heartbeats tell their states
        self._connection = Connection(
            f"tcp://{self.address}:{boot.port}", *boot.access, events=zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self.bell = Bell()  # rings when a message has come
        self._came: deque[wire.ToAgent] = deque()
        self._answers: queue.SimpleQueue[store.Told | None] = queue.SimpleQueue()
        self._begun = self._suspended = False
        self._heard = self._looked = self._turned = time.monotonic()
        self._messages: channel.Sequence[wire.FromAgent] = channel.Sequence()
        self._decoder = msgspec.msgpack.Decoder(wire.Order)
        self._loop = Loop[wire.FromAgent](
            "line to the controller",
            lambda: (self._connection.socket,),
            turn=self._take,
            beat=self._beat,
            send=self._send_new,
            end=lambda: self._connection.close(linger=5000),
        )
        self._loop.start()

    @property
    def silence(self) -> float:
        """Seconds since the controller was last heard; 0 while it is stopped, and has said so."""
        return 0.0 if self._suspended else self._looked - self._heard

    def send(self, message: wire.FromAgent) -> None:
        self._loop.post(message)

    def receive(self) -> list[wire.ToAgent]:
        """All messages that have arrived; never waits. To be called again and again: without, heartbeats end."""
        self._turned = time.monotonic()
        self.bell.clear()
        return [self._came.popleft() for _ in range(len(self._came))]

    def ask(self, ask: store.Ask) -> store.Told:
        """What the store of the run answers. One thread calls it; EOFError after `stop_asking`."""
        self._loop.post(wire.Asked(ask))
        told = self._answers.get()
        if told is None:
            self.stop_asking()
            raise EOFError
        return told

    def stop_asking(self) -> None:
        self._answers.put(None)

    def close(self) -> None:
        """Sends what is left; waits 5 s at most."""
        self._loop.close()
        self.bell.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._begun and self._looked - self._turned < STUCK:
            self._send_new(wire.States("".join(state_of(pid) or "-" for pid in self.pids)))

    def _take(self) -> None:
        for frames in self._connection.receive():
            order = self._decoder.decode(joined(frames))
            self._heard = time.monotonic()
            if not self._messages.accepts(order.place, order.heard):
                continue
            self._suspended = isinstance(order.message, wire.Suspended)
            if isinstance(order.message, wire.Answered):
                self._answers.put(order.message.told)
            else:
                self._came.append(order.message)
                self.bell.ring()
        self._looked = time.monotonic()
        # What the controller may not have heard, if the connection was made anew.
        for place, message in self._messages.unheard() if self._connection.was_renewed() else ():
            self._send(message, place)

    def _send_new(self, message: wire.FromAgent) -> None:
        self._begun = True
        self._send(message, self._messages.add(message))

    def _send(self, message: wire.FromAgent, place: int) -> None:
        envelope = wire.Envelope(self._number, message, place, self._messages.heard)
        self._connection.send(frames_of(msgspec.msgpack.encode(envelope)))


class PassedOn:
    """Answers the requests of this host's workers: keeps their descriptors, which cannot leave the host, and asks the
    controller for everything else. Called from one thread, that of the link server."""

    def __init__(self, line: Line) -> None:
        self._line, self._here = line, store.Values()

    def do(self, ask: store.Ask, came: list[int]) -> tuple[store.Value, list[int]]:
        if isinstance(ask, store.Set) and came:
            return self._here.do(ask, came)
        if isinstance(ask, store.Get):
            value, descriptors = self._here.do(ask, [])
            if value is not None:
                return value, descriptors
        if isinstance(ask, store.Delete) and self._here.do(ask, [])[0]:
            return 1, []
        told = self._line.ask(ask)
        if told.problem:
            raise ValueError(told.problem)
        return told.value, []

    def close(self) -> None:
        self._here.close()


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
