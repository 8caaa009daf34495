"""An agent's line to its controller, and the way on for its workers' requests to the store of the run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.facts import NO_ANSWER, connect_all
from paceline.launch.processes import state_of
from paceline.settings import ssh_client
from paceline.threads import Bell
from paceline.wire import channel, store
from paceline.wire.channel import Connection, Loop, frames_of, joined

WAIT = 45.0  # seconds for the controller to answer: for so long strangers may hold its port
TRY = 2.0  # seconds of one try: the kernel itself tries again ever more rarely
STUCK = 60.0  # seconds that the agent's loop may wait for a disk or a device, before the host is called silent


class NoController(Exception):
    """The controller cannot be reached."""


class Line:
    """The agent's side. The controller hears this host whatever the agent's main thread waits for, which alone uses the
    methods."""

    def __init__(self, boot: wire.Boot) -> None:
        """Raises NoController if no address of the controller answers."""
        self._number = boot.number
        self.address = _reachable(boot)
        self.pids: Sequence[int] = ()  # of the workers: heartbeats tell their states
        self._connection = connect(boot, self.address)
        self.bell = Bell()  # rings when a message has come
        self._came: deque[wire.ToAgent] = deque()
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

    def close(self) -> None:
        """Sends what is left; waits 5 s at most."""
        self._loop.close()
        self.bell.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._is_well:
            self._send_new(wire.States("".join(state_of(pid) or "-" for pid in self.pids)))

    @property
    def _is_well(self) -> bool:
        """Whether the agent's loop goes on."""
        return self._begun and self._looked - self._turned < STUCK

    def _take(self) -> None:
        for frames in self._connection.receive():
            order = self._decoder.decode(joined(frames))
            self._heard = time.monotonic()
            if self._messages.accepts(order.place, order.heard):
                if isinstance(order.message, wire.Alive) and order.message.at and self._is_well:
                    self._send_new(wire.Clock(order.message.at, time.time()))
                self._suspended = isinstance(order.message, wire.Suspended)
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

    def __init__(self, boot: wire.Boot, address: str, run: int = 0) -> None:
        self._number, self._run, self._asked, self._here = boot.number, run, 0, store.Values()
        self._connection = connect(boot, address)
        self._decoder = msgspec.msgpack.Decoder(wire.StoreTold)
        self._over = threading.Event()

    def do(self, ask: store.Ask, came: list[int]) -> tuple[store.Value, list[int]]:
        if isinstance(ask, store.Set) and came:
            return self._here.do(ask, came)
        if isinstance(ask, store.Get):
            value, descriptors = self._here.do(ask, [])
            if value is not None:
                return value, descriptors
        if isinstance(ask, store.Delete) and self._here.do(ask, [])[0]:
            return 1, []
        self._asked += 1
        question = frames_of(msgspec.msgpack.encode(wire.StoreAsk(self._number, self._asked, ask, self._run)))
        self._connection.send(question)
        while not self._over.is_set():
            self._connection.socket.poll(200)
            for frames in self._connection.receive():
                answer = self._decoder.decode(joined(frames))
                if answer.place == self._asked:
                    if answer.told.problem:
                        raise ValueError(answer.told.problem)
                    return answer.told.value, []
            if self._connection.was_renewed():
                self._connection.send(question)
        raise EOFError

    def stop(self) -> None:
        """From now on a request that waits for the controller fails."""
        self._over.set()

    def close(self) -> None:
        self._connection.close()
        self._here.close()


def connect(boot: wire.Boot, address: str) -> Connection:
    place = f"tcp://{address}:{boot.port}"
    return Connection(place, *boot.access, events=zmq.EVENT_HANDSHAKE_SUCCEEDED)


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
