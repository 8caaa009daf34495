"""Messages between the workers of one generation of an elastic run, on any hosts, over ZeroMQ.

Nothing here waits in native code for a peer: a worker that waits looks up again and again whether a peer is lost. Each
worker makes a key and a token for itself, and tells them to the others through the store of the run: a process that
cannot read that store can neither listen nor send.

A connection that breaks (a reset, a firewall that forgets it) is made again by ZeroMQ, which does not send again what
was on its way. So letters are kept until it is certain that they have arrived, and are sent again over each new
connection; who has them already drops them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import zmq

from paceline.wire.channel import Connection, Keys, Listener, frames_of

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
        self._listener = Listener(Keys.make(), address, expected=world)
        self._context = zmq.Context()  # of the connections
        self._came: dict[tuple[int, int], dict[int, Letter]] = {}
        self._over: tuple[int, int] = (0, -1)  # the latest collective and phase whose letters were all collected
        self._to: dict[int, Connection] = {}
        self._sent: dict[int, list[list[Any]]] = {peer: [] for peer in self.peers}  # what may have to be sent again
        try:
            store.set(f"letters{rank}", " ".join((self._listener.place, *self._listener.access)))
            for peer in self.peers:
                self._to[peer] = Connection(
                    *store.get(f"letters{peer}").decode().split(),
                    context=self._context,
                    events=zmq.EVENT_HANDSHAKE_SUCCEEDED,
                    options={zmq.TCP_MAXRT: _UNACKNOWLEDGED},
                )
        except BaseException:
            self.close()
            raise

    def post(self, peer: int, number: int, phase: int, call: bytes, data: torch.Tensor | None = None) -> None:
        """Sends bytes. They must not change until all peers have said that they have them (`arrived`)."""
        frames = [_HEAD.pack(number, phase, self.rank), call]
        self._sent[peer].append(frames if data is None else [*frames, *frames_of(data.numpy())])
        self._to[peer].send(self._sent[peer][-1], copy=False)

    def collect(self, number: int, phase: int, *, or_so: Callable[[], bool] = lambda: False) -> dict[int, Letter]:
        """Waits for the letters of all peers in this phase of a collective, or until it has become so that they are
        not needed, which is asked now and then after a long wait."""
        nap, began = _LOOKS[0], time.monotonic()
        looked = asked = began
        while len(came := self._came.setdefault((number, phase), {})) < len(self.peers):
            if self._listener.socket.poll(int(1000 * nap)):
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
        for connection in self._to.values():
            connection.close(linger=linger)
        self._listener.close()
        self._sent.clear()
        self._context.term()

    def bid_farewell(self) -> None:
        """Before the process ends."""
        self.close(linger=_FAREWELL)

    def _send_again(self) -> None:
        """Letters to peers to which there is a new connection: those on their way may be lost with the old one."""
        for peer, connection in self._to.items():
            for letter in self._sent[peer] if connection.was_renewed() else ():
                connection.send(letter, copy=False)

    def _take(self) -> None:
        for _, (head, call, *data) in self._listener.receive(copy=False):
            number, phase, sender = _HEAD.unpack(head)
            if (number, phase) <= self._over:
                continue  # it has come before
            # A copy: what came is read-only, and lies at any address.
            raw = bytearray().join(data)
            held = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8, device="cpu")
            self._came.setdefault((number, phase), {})[sender] = Letter(bytes(call), held)
