"""A thread that tells servers that this worker lives, also while the script computes, and notices their restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq

from paceline.strategies.server import messages as say
from paceline.wire.channel import Access, Connection, Loop


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
