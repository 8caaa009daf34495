"""Messages between the workers of one generation of an elastic run, on any hosts, over ZeroMQ.

Nothing here waits in native code for a peer: a worker that waits looks up again and again whether a peer is lost. Each
worker makes a key and a token for itself, and tells them to the others through the store of the run: a process that
cannot read that store can neither listen nor send.

A connection that breaks (a reset, a firewall that forgets it) is made again by ZeroMQ, which does not send again what
was on its way. So letters are kept until it is certain that they have arrived, and are sent again over each new
connection; who has them already drops them.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import zmq

from paceline.wire.channel import Door, frames_of, is_token, trust
from paceline.wire.connections import Connections

_HEAD = struct.Struct("!QBI")  # number of the collective, phase, sender
_LOOKS = (0.02, 0.1)  # seconds between two looks for a lost peer: the first, and the longest
_FAREWELL = 2000  # milliseconds in which the last messages of a worker that ends must have left it
_UNACKNOWLEDGED = 15_000  # milliseconds after which the kernel gives a connection up that does not take what is sent
_LONG = 1.0  # seconds of waiting after which a letter may have been lost with its sender's end


class Letter(NamedTuple):
    """What a peer has sent: a description of its call, and data."""

    call: bytes
    data: torch.Tensor


class Letters:
    """Used by one thread."""

    def __init__(self, store: Any, rank: int, world: int, *, address: str, look: Callable[[], None]) -> None:
        """Every worker of the group calls it; waits until all have an address. `look` raises if a peer is lost."""
        self.rank, self.world, self._look = rank, world, look
        self.peers = [peer for peer in range(world) if peer != rank]
        self._context = zmq.Context()
        public, secret = zmq.curve_keypair()
        self._token = secrets.token_hex(16)
        self._inbox: Any = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.RCVHWM, 0)
        self._door = Door(self._inbox, secret, address, expected=world)
        self._came: dict[tuple[int, int], dict[int, Letter]] = {}
        self._over: tuple[int, int] = (0, -1)  # the latest collective and phase whose letters were all collected
        self._to: dict[int, tuple[Any, bytes]] = {}  # the socket to each peer, and the peer's token
        self._sent: dict[int, list[list[Any]]] = {peer: [] for peer in self.peers}  # what may have to be sent again
        self._connections: dict[int, Connections] = {}  # to each peer
        try:
            store.set(f"letters{rank}", f"tcp://{address}:{self._door.port} {public.decode()} {self._token}")
            for peer in self.peers:
                place, key, token = store.get(f"letters{peer}").decode().split()
                socket: Any = self._context.socket(zmq.PUSH)
                self._to[peer] = socket, token.encode()
                trust(socket, key)
                socket.setsockopt(zmq.SNDHWM, 0)
                socket.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED)
                self._connections[peer] = Connections(socket)
                socket.connect(place)
        except BaseException:
            self.close()
            raise

    def post(self, peer: int, number: int, phase: int, call: bytes, data: torch.Tensor | None = None) -> None:
        """Sends bytes. They must not change until all peers have said that they have them (`arrived`)."""
        _, token = self._to[peer]
        frames = [token, _HEAD.pack(number, phase, self.rank), call]
        self._sent[peer].append(frames if data is None else [*frames, *frames_of(data.numpy())])
        self._send(peer, self._sent[peer][-1])

    def collect(self, number: int, phase: int, *, or_so: Callable[[], bool] = lambda: False) -> dict[int, Letter]:
        """Waits for the letters of all peers in this phase of a collective, or until it has become so that they are
        not needed, which is asked now and then after a long wait."""
        nap, began = _LOOKS[0], time.monotonic()
        looked = asked = began
        while len(came := self._came.setdefault((number, phase), {})) < len(self.peers):
            if self._inbox.poll(int(1000 * nap)):
                self._take()
            if (now := time.monotonic()) - looked >= nap:
                self._look()
                self._send_again()
                if now - asked >= _LONG:
                    asked = now
                    if or_so():
                        break
                nap, looked = min(2 * nap, _LOOKS[1]), time.monotonic()
        del self._came[number, phase]
        self._over = number, phase
        return came

    def arrived(self) -> None:
        """All peers have said that they have everything of this collective. They may not have heard that from here."""
        for letters in self._sent.values():
            del letters[:-1]

    def close(self, *, linger: int = 0) -> None:
        """With `linger`, waits so many milliseconds for what was sent last."""
        for connection in self._connections.values():
            connection.close()
        self._door.close()
        for socket in (self._inbox, *(socket for socket, _ in self._to.values())):
            socket.close(linger=linger)
        self._sent.clear()
        self._context.term()

    def bid_farewell(self) -> None:
        """Before the process ends."""
        self.close(linger=_FAREWELL)

    def _send(self, peer: int, letter: list[Any]) -> None:
        self._to[peer][0].send_multipart(letter, copy=False)

    def _send_again(self) -> None:
        """Letters to peers to which there is a new connection: those on their way may be lost with the old one."""
        for peer, connection in self._connections.items():
            for letter in self._sent[peer] if connection.were_renewed() else ():
                self._send(peer, letter)

    def _take(self) -> None:
        token, head, call, *data = self._inbox.recv_multipart(copy=False)
        if not is_token(token.bytes, self._token) or len(head) != _HEAD.size:
            return
        number, phase, sender = _HEAD.unpack(head.bytes)
        if (number, phase) <= self._over:
            return  # it has come before
        # A copy: what came is read-only, and lies at any address.
        raw = bytearray().join(frame.buffer for frame in data)
        held = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8, device="cpu")
        self._came.setdefault((number, phase), {})[sender] = Letter(call.bytes, held)
