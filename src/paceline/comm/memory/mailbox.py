"""Point-to-point messages between workers through shared memory, with two buffers per pair and direction.

A message is cut into pieces that fit a buffer; the sender fills one buffer while the receiver empties the other.
Messages of a pair arrive in order. A message whose tag has not been requested yet is kept for a later receive.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from paceline.comm.call_site import script_line
from paceline.comm.memory import shm_rendezvous
from paceline.comm.memory.shm_rendezvous import LINE, Meeting
from paceline.errors import PartedError, PeerLostError

BUFFER = 256 << 10  # bytes
HEAD = struct.Struct("<qq")  # tag, bytes of the message
PAIR = 4 * LINE + 2 * BUFFER  # bytes per pair and direction: two signals, two heads, two buffers
NAP = 0.001  # seconds between two polls of all workers in `receive_any`


class _Place(threading.local):
    """The script line of the call that this thread runs."""

    site: Callable[[], str] = staticmethod(script_line)


class Mailbox:
    """Messages between the workers of one group. Only one thread at a time may send to a given worker. Any number of
    threads may receive from a worker, each with a tag of its own: one thread reads the incoming messages and keeps
    those of other tags for the other threads."""

    def __init__(self, store: Any, rank: int, world: int, **options: Any) -> None:
        """Every worker of the group calls it; waits for all."""
        self.rank, self.world = rank, world
        self._meeting = Meeting(store, rank, world, world * world * PAIR, **options)
        memory: Any = self._meeting.space.numpy()
        self._memory = memoryview(memory)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._sent, self._read = [0] * world, [0] * world  # pieces, by peer
        self._aside: list[deque[tuple[int, torch.Tensor]]] = [deque() for _ in range(world)]
        self._is_read = [False] * world  # by peer: a thread is reading from this peer
        self._change = threading.Condition()
        self._place, self._timeout = _Place(), options.get("timeout")
        for peer in range(world):
            full, free = self._signals(peer, rank)
            shm_rendezvous.make(full)
            shm_rendezvous.make(free)
            for _ in range(2):
                shm_rendezvous.post(free)
        self._meeting.meet()

    def at(self, site: Callable[[], str]) -> None:
        """Sets the script line of the next call of this thread, for error messages."""
        self._place.site = site

    def send(self, data: torch.Tensor, to: int, tag: int) -> None:
        """Sends bytes. Returns when all bytes are in shared memory; the receiver may not have read the last two pieces
        yet."""
        full, free = self._signals(self.rank, to)
        for at in range(0, max(data.numel(), 1), BUFFER):
            self._take(free, to, "send")
            head, buffer = self._places(self.rank, to, self._sent[to])
            piece = data[at : at + BUFFER]
            self._memory[head : head + HEAD.size] = HEAD.pack(tag, data.numel())
            self._meeting.space[buffer : buffer + piece.numel()].copy_(piece)
            self._sent[to] += 1
            shm_rendezvous.post(full)

    def receive(self, data: torch.Tensor, source: int, tag: int) -> None:
        """Receives bytes into `data`. Waits for a message with this tag."""
        while True:
            with self._change:
                while (message := self._from_aside(source, tag)) is None and self._is_read[source]:
                    self._change.wait()
                if message is None:
                    self._is_read[source] = True
            if message is not None:
                self._open(message, data, source)
                return
            if self._read_next(data, source, tag):
                return

    def receive_any(self, data: torch.Tensor, tag: int) -> int:
        """Receives the next message with this tag from any worker; returns the sender's rank."""
        since = time.monotonic()
        while True:
            gone = self._meeting.gone()  # before the poll: a worker may have sent a message and then ended
            for source in range(self.world):
                with self._change:
                    message = self._from_aside(source, tag)
                    come = message is None and not self._is_read[source] and self._has_come(source)
                    if come:
                        self._is_read[source] = True
                if message is not None:
                    self._open(message, data, source)
                    return source
                if come and self._read_next(data, source, tag):
                    return source
            if gone:
                raise PeerLostError(
                    f"Worker {self._meeting.names[gone[0]]} has ended while worker {self._meeting.names[self.rank]} "
                    f"waits for a message from any worker at {self._place.site()}."
                )
            self._check_timeout(since, "a message from any worker")
            time.sleep(NAP)

    def _has_come(self, source: int) -> bool:
        return source != self.rank and bool(shm_rendezvous.count(self._signals(source, self.rank)[0]))

    def _from_aside(self, source: int, tag: int) -> torch.Tensor | None:
        for index, (kept, message) in enumerate(self._aside[source]):
            if kept == tag:
                del self._aside[source][index]
                return message
        return None

    def _read_next(self, data: torch.Tensor, source: int, tag: int) -> bool:
        """Waits for the next message from `source`. If its tag and size match, reads it into `data` and returns True;
        otherwise keeps it for a later receive. The caller has set `_is_read[source]`."""
        aside: tuple[int, torch.Tensor] | None = None
        try:
            self._take(self._signals(source, self.rank)[0], source, "receive")
            head, _ = self._places(source, self.rank, self._read[source])
            got, size = HEAD.unpack(self._memory[head : head + HEAD.size])
            if got == tag and size == data.numel():
                self._read_into(data, source)
                return True
            message = torch.empty(size, dtype=torch.uint8, device="cpu")
            self._read_into(message, source)
            aside = got, message
            return False
        finally:
            with self._change:
                if aside is not None:
                    self._aside[source].append(aside)
                self._is_read[source] = False
                self._change.notify_all()

    def _read_into(self, data: torch.Tensor, source: int) -> None:
        """Reads a whole message. The caller has taken the signal of the first piece."""
        full, free = self._signals(source, self.rank)
        for at in range(0, max(data.numel(), 1), BUFFER):
            if at:
                self._take(full, source, "receive")
            _, buffer = self._places(source, self.rank, self._read[source])
            piece = data[at : at + BUFFER]
            piece.copy_(self._meeting.space[buffer : buffer + piece.numel()])
            self._read[source] += 1
            shm_rendezvous.post(free)

    def _open(self, message: torch.Tensor, data: torch.Tensor, source: int) -> None:
        if message.numel() != data.numel():
            raise PartedError(
                f"Worker {self._meeting.names[source]} sent {message.numel()} bytes, but worker "
                f"{self._meeting.names[self.rank]} expects {data.numel()} at {self._place.site()}.",
                advice="A send and its receive must have the same size and dtype.",
            )
        data.copy_(message)

    def _take(self, address: int, peer: int, doing: str) -> None:
        since = time.monotonic()

        def check() -> None:
            if peer in self._meeting.gone() and not shm_rendezvous.count(address):
                raise PeerLostError(
                    f"Worker {self._meeting.names[peer]} has ended during a {doing} at {self._place.site()}."
                )
            self._check_timeout(since, f"worker {self._meeting.names[peer]} in a {doing}")

        shm_rendezvous.take(address, self._meeting.spin, check)

    def _check_timeout(self, since: float, what: str) -> None:
        if self._timeout is not None and time.monotonic() - since > self._timeout:
            raise PeerLostError(
                f"Worker {self._meeting.names[self.rank]} has waited {self._timeout:.0f} s for {what} at "
                f"{self._place.site()}."
            )

    def _signals(self, source: int, to: int) -> tuple[int, int]:
        at = self._base + PAIR * (source * self.world + to)
        return at, at + LINE

    def _places(self, source: int, to: int, piece: int) -> tuple[int, int]:
        at, turn = PAIR * (source * self.world + to), piece & 1
        return at + (2 + turn) * LINE, at + 4 * LINE + turn * BUFFER
