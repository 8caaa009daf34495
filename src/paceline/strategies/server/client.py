"""A worker's connection to all servers of its run. One thread uses it: the script's.

A request waits until every server has answered. Servers may die meanwhile: the request is then sent again to the server
that has come back, which does it once. A server that stays away raises PeerLostError.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

import msgspec
import zmq

from paceline.comm.memory.region import host_of_this_process
from paceline.errors import PeerLostError, ScriptError
from paceline.strategies.server import messages as say
from paceline.strategies.server.servers import Addresses
from paceline.wire.channel import Access, Connection, Loop

LOOK = 100  # milliseconds between two looks at the servers' lives
AGAIN = 10.0  # seconds after which a request is sent again: the network may have lost it
FAREWELL = 2.0  # seconds

Make = Callable[[int], tuple[say.Ask, Any]]  # a request's number → the request, and its numbers or None
Wait = Callable[[str], AbstractContextManager[None]]


class Pending:
    """One request to one server."""

    def __init__(self, request: int, make: Make, start: int) -> None:
        self.request, self.make, self.start = request, make, start
        self.sent = 0.0
        self.answer: say.Say | None = None
        self.numbers: memoryview | None = None


class Client:
    """Connects at once; servers need not be there yet. `waiting(what)` surrounds every wait."""

    def __init__(
        self,
        addresses: Addresses,
        access: Access,
        *,
        rank: int,
        notice: Callable[[str], None] = print,
        waiting: Wait = lambda what: nullcontext(),
        patience: float = 60.0,
    ) -> None:
        """`patience`: seconds without any answer after which a server counts as lost."""
        self.rank, self.worker = rank, secrets.randbits(62)
        self.shares_memory = addresses.host == host_of_this_process()
        chosen = [each[0] if self.shares_memory else each[-1] for each in addresses.servers]
        self.servers = len(chosen)
        self.openings: list[Callable[[int], Make]] = []  # of each space, for a server that has started again
        self._waiting, self._patience, self._process = waiting, patience, os.getpid()
        self._requests: Iterator[int] = count(1)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections = [connect(self._context, address, access) for address in chosen]
        self._poller = zmq.Poller()
        for connection in self._connections:
            self._poller.register(connection.socket, zmq.POLLIN)
        self._hello = say.Hello(0, self.worker, rank, self._process, host_of_this_process())
        self._heart = Heartbeat(self._context, chosen, access, self._hello, notice)
        self._over = False
        self.ask_all(dict.fromkeys(range(self.servers), self._make_hello), "a parameter server's welcome")

    def ask_all(self, makes: dict[int, Make], what: str) -> dict[int, Pending]:
        """Asks servers, and waits for all of their answers."""
        return self.finish(self.begin(makes), what)

    def begin(self, makes: dict[int, Make]) -> dict[int, Pending]:
        """Sends requests, and does not wait."""
        asked = {}
        for server, make in makes.items():
            asked[server] = Pending(next(self._requests), make, self._heart.starts[server])
            self._send(server, asked[server])
        return asked

    def finish(self, asked: dict[int, Pending], what: str) -> dict[int, Pending]:
        """Waits for the answers. Raises PeerLostError if a server is lost, ScriptError if one refuses."""
        if all(each.answer is not None for each in asked.values()):
            return asked
        with self._waiting(what):
            while any(each.answer is None for each in asked.values()):
                self._receive(asked)
                self._look_after(asked)
        return asked

    def close(self) -> None:
        """Says good-bye; waits 2 s at most."""
        if self._over or os.getpid() != self._process:
            return
        self._over = True
        asked = self.begin(dict.fromkeys(range(self.servers), lambda number: (say.Bye(number, self.worker), None)))
        until = time.monotonic() + FAREWELL
        while any(each.answer is None for each in asked.values()) and time.monotonic() < until:
            self._receive(asked)
        self._heart.close()
        for connection in self._connections:
            connection.close()
        self._context.term()

    # -- one server ---------------------------------------------------------------------------------------------------

    def _make_hello(self, number: int) -> tuple[say.Ask, None]:
        return msgspec.structs.replace(self._hello, request=number), None

    def _send(self, server: int, pending: Pending) -> None:
        ask, numbers = pending.make(pending.request)
        pending.sent = time.monotonic()
        self._connections[server].send(say.framed(ask, numbers), copy=numbers is None)

    def _receive(self, asked: dict[int, Pending]) -> None:
        self._poller.poll(LOOK)
        for server, connection in enumerate(self._connections):
            for frames in connection.receive(copy=False):
                self._take(server, asked.get(server), frames)

    def _take(self, server: int, pending: Pending | None, frames: list[memoryview]) -> None:
        body, numbers = say.parted(frames)
        answer = say.decode_answer(body)
        if isinstance(answer, say.Welcome):
            self._heart.tell(answer.notices)
        if pending is None or answer.request != pending.request or pending.answer is not None:
            return  # the answer to a request that was sent twice
        if isinstance(answer, say.Unknown):
            self._introduce(server)
            self._send(server, pending)
        elif isinstance(answer, say.Refused):
            raise ScriptError(
                f"Parameter server {server} refused a request of worker {self.rank}: {answer.reason}.",
                advice=f"Look into log.server{server}.txt of the run's record.",
            )
        else:
            pending.answer, pending.numbers = answer, numbers

    def _look_after(self, asked: dict[int, Pending]) -> None:
        """Sends requests again to servers that have started again; gives servers up that stay away."""
        now = time.monotonic()
        for server, pending in asked.items():
            if pending.answer is not None:
                continue
            start = self._heart.starts[server]
            if start != pending.start or now - pending.sent > AGAIN:
                if pending.start and start != pending.start:
                    self._introduce(server)
                pending.start = start
                self._send(server, pending)
            if now - self._heart.heard[server] > self._patience:
                raise PeerLostError(
                    f"Parameter server {server} has not answered for {self._patience:.0f} s.",
                    advice=f"Look into log.server{server}.txt of the run's record.",
                )

    def _introduce(self, server: int) -> None:
        """Says Hello, and opens every space again; the answers are not waited for."""
        for make in (self._make_hello, *(opening(server) for opening in self.openings)):
            self._send(server, Pending(next(self._requests), make, 0))


def told(pending: Pending) -> Any:
    """The value of an answered request."""
    assert isinstance(pending.answer, say.Told)
    return pending.answer.value


# -- heartbeats -------------------------------------------------------------------------------------------------------


class Heartbeat:
    """`heard[s]` is when server s last answered; `starts[s]` is which of its lives that was."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: Sequence[str],
        access: Access,
        hello: say.Hello,
        notice: Callable[[str], None],
    ) -> None:
        self._hello, self._notice = hello, notice
        self.heard = [time.monotonic()] * len(addresses)
        self.starts = [0] * len(addresses)
        self._told: set[str] = set()
        self._connect = lambda: [connect(context, address, access) for address in addresses]
        self._beats = [say.encode(say.Beat(0, hello.worker))]
        self._loop = Loop[None]("paceline-heartbeat", self._sockets, turn=self._hear, beat=self._beat, end=self._end)
        self._loop.start()

    def close(self) -> None:
        self._loop.close(timeout=2)

    def tell(self, notices: Sequence[str]) -> None:
        """Passes on what a server has to say, each text once."""
        for text in notices:
            if text not in self._told:
                self._told.add(text)
                self._notice(text)

    def _sockets(self) -> Iterable[Any]:
        self._connections = self._connect()
        return [connection.socket for connection in self._connections]

    def _beat(self) -> None:
        for connection in self._connections:
            connection.send(self._beats)

    def _hear(self) -> None:
        for server, connection in enumerate(self._connections):
            for frames in connection.receive():
                answer = say.decode_answer(frames[0])
                self.heard[server] = time.monotonic()
                if isinstance(answer, say.Pong):
                    self.starts[server] = answer.start
                elif isinstance(answer, say.Welcome):
                    self.starts[server] = answer.start
                    self.tell(answer.notices)
                elif isinstance(answer, say.Unknown):  # the server has started again: this worker is still here
                    connection.send([say.encode(self._hello)])

    def _end(self) -> None:
        for connection in self._connections:
            connection.close()


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str, access: Access) -> Connection:
    """A connection to one server, which is made again soon."""
    options: dict[int, int] = {zmq.RECONNECT_IVL: 50, zmq.RECONNECT_IVL_MAX: 500}
    if address.startswith("tcp:"):
        options |= {zmq.HEARTBEAT_IVL: 2000, zmq.HEARTBEAT_TIMEOUT: 10000}
    return Connection(address, *access, context=context, options=options)
