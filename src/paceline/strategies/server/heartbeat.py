"""A thread that tells servers that this worker lives, also while the script computes, and notices their restarts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from paceline import threads
from paceline.comm.pulse import BEAT
from paceline.strategies.server import messages as say
from paceline.strategies.server.keys import WorkerKeys, prove


class Heartbeat:
    """`heard[s]` is when server s last answered; `starts[s]` is which of its lives that was."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: Sequence[str],
        keys: WorkerKeys,
        hello: say.Hello,
        notice: Callable[[str], None],
    ) -> None:
        self._context, self._addresses, self._keys, self._hello = context, addresses, keys, hello
        self.heard = [time.monotonic()] * len(addresses)
        self.starts = [0] * len(addresses)
        self.over = False  # rank 0 has ended
        self._told: set[str] = set()
        self._notice, self._over = notice, False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threads.start("paceline-heartbeat", self._run)

    def close(self) -> None:
        self._over = True
        os.eventfd_write(self._bell, 1)
        self._thread.join(timeout=2)
        os.close(self._bell)

    def tell(self, notices: Sequence[str]) -> None:
        """Passes on what a server has to say, each text once."""
        for text in notices:
            if text not in self._told:
                self._told.add(text)
                self._notice(text)

    def _run(self) -> None:
        sockets = [connect(self._context, address, self._keys) for address in self._addresses]
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        body = say.encode(say.Beat(0, self._hello.worker))
        next_beat = 0.0
        while not self._over:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT
                for socket in sockets:
                    self._send(socket, body)
            for source, _ in poller.poll(int(1000 * max(0.0, next_beat - time.monotonic()))):
                if source != self._bell:
                    self._hear(source, sockets.index(source))
        for socket in sockets:
            socket.close(linger=0)

    def _hear(self, socket: zmq.Socket[bytes], server: int) -> None:
        try:
            answer = say.decode_answer(socket.recv_multipart()[0])
        except msgspec.DecodeError:
            return
        self.heard[server] = time.monotonic()
        if isinstance(answer, say.Pong):
            self.starts[server] = answer.start
            self.over = self.over or answer.over
        elif isinstance(answer, say.Welcome):
            self.starts[server] = answer.start
            self.tell(answer.notices)
        elif isinstance(answer, say.Unknown):  # the server has started again: this worker is still here
            self._send(socket, say.encode(self._hello))

    def _send(self, socket: zmq.Socket[bytes], body: bytes) -> None:
        try:
            socket.send(body, zmq.NOBLOCK)
        except zmq.Again:
            pass  # a server that is away for long: its queue is full of heartbeats


def connect(context: zmq.Context[zmq.Socket[bytes]], address: str, keys: WorkerKeys) -> zmq.Socket[bytes]:
    """A socket to one server, which connects again by itself."""
    socket = context.socket(zmq.DEALER)
    prove(socket, keys)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    if address.startswith("tcp:"):
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
    socket.connect(address)
    return socket
