"""An agent's line to its controller, and the way on for its workers' requests to the store of the run."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import zmq

from paceline.comm.link import messages as say
from paceline.launch.cluster import wire
from paceline.launch.cluster.facts import connect_all
from paceline.launch.store import Value, Values
from paceline.settings import ssh_client

WAIT = 6.0  # seconds for the controller to answer


class NoController(Exception):
    """The controller cannot be reached."""


class Line:
    """The agent's side. Only the agent's main thread uses it."""

    def __init__(self, boot: wire.Boot) -> None:
        """Raises NoController if no address of the controller answers."""
        self._boot = boot
        self.address = _reachable(boot)
        self._context = zmq.Context()
        self.socket = dealer(self._context, boot, boot.port, self.address)
        self._decoder = msgspec.msgpack.Decoder(wire.ToAgent)

    def send(self, message: wire.FromAgent) -> None:
        self.socket.send(msgspec.msgpack.encode(wire.Envelope(self._boot.token, self._boot.number, message)))

    def receive(self) -> list[wire.ToAgent]:
        """All messages that have arrived; never waits."""
        found: list[wire.ToAgent] = []
        while True:
            try:
                found.append(self._decoder.decode(self.socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return found

    def close(self) -> None:
        """Sends what is left; waits 5 s at most."""
        self.socket.close(linger=5000)
        self._context.term()


class PassedOn:
    """Answers the requests of this host's workers: keeps their descriptors, which cannot leave the host, and asks the
    controller for everything else. Called from one thread, that of the link server."""

    def __init__(self, boot: wire.Boot, address: str) -> None:
        self._token, self._here = boot.token, Values()
        self._context = zmq.Context()
        self._socket = dealer(self._context, boot, boot.store_port, address)
        self._decoder = msgspec.msgpack.Decoder(say.Told)
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
        self._socket.send(msgspec.msgpack.encode(wire.StoreAsk(self._token, ask)))
        while not self._socket.poll(200):
            if self._over.is_set():
                raise EOFError
        return self._decoder.decode(self._socket.recv()).value, []

    def stop(self) -> None:
        """From now on a request that waits for the controller fails."""
        self._over.set()

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
        self._here.close()


def dealer(context: Any, boot: wire.Boot, port: int, address: str) -> Any:
    """A socket to the controller."""
    socket = context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_SERVERKEY, boot.key.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(f"tcp://{address}:{port}")
    return socket


def _reachable(boot: wire.Boot) -> str:
    came_from = ssh_client()
    addresses = tuple(dict.fromkeys((came_from, *boot.addresses) if came_from else boot.addresses))
    failures = connect_all([("0.0.0.0", address, boot.port) for address in addresses], WAIT)
    for address, failure in zip(addresses, failures, strict=True):
        if not failure:
            return address
    tried = ", ".join(f"{address} ({why})" for address, why in zip(addresses, failures, strict=True))
    raise NoController(f"port {boot.port} of the host where the run was started: {tried}")
