"""An agent's line to its controller, and the way on for its workers' requests to the store of the run."""

from __future__ import annotations

import secrets
import threading
from typing import Any

import msgspec
import zmq

from paceline.comm.link import messages as say
from paceline.comm.network.connections import Connections
from paceline.comm.network.curve import frames_of, joined, trust
from paceline.launch.cluster import wire
from paceline.launch.cluster.facts import connect_all
from paceline.launch.cluster.sequence import Sequence
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
        self.socket, self._connections = dealer(self._context, boot, boot.port, self.address)
        self._sequence: Sequence[wire.FromAgent] = Sequence()
        self._decoder = msgspec.msgpack.Decoder(wire.Order)

    def send(self, message: wire.FromAgent) -> None:
        self._send_again()
        self._send(message, self._sequence.add(message))

    def receive(self) -> list[wire.ToAgent]:
        """All messages that have arrived; never waits."""
        found: list[wire.ToAgent] = []
        while True:
            try:
                order = self._decoder.decode(joined(self.socket.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                self._send_again()
                return found
            if self._sequence.accepts(order.place, order.heard):
                found.append(order.message)

    def close(self) -> None:
        """Sends what is left; waits 5 s at most."""
        self._connections.close()
        self.socket.close(linger=5000)
        self._context.term()

    def _send(self, message: wire.FromAgent, place: int) -> None:
        envelope = wire.Envelope(self._boot.token, self._boot.number, message, place, self._sequence.heard)
        self.socket.send_multipart(frames_of(msgspec.msgpack.encode(envelope)))

    def _send_again(self) -> None:
        """What the controller may not have heard, if the connection was made anew."""
        for place, message in self._sequence.unheard() if self._connections.were_renewed() else ():
            self._send(message, place)


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
    failures = connect_all([("0.0.0.0", address, boot.port) for address in addresses], WAIT)
    for address, failure in zip(addresses, failures, strict=True):
        if not failure:
            return address
    tried = ", ".join(f"{address} ({why})" for address, why in zip(addresses, failures, strict=True))
    raise NoController(f"port {boot.port} of the host where the run was started: {tried}")
