"""Messages from one worker to another, through shared memory: two buffers for each pair and direction.

A message is cut into pieces that fit a buffer; the sender fills one while the receiver empties the other. Messages of
one pair come in order; one whose tag is not asked for yet is put aside.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from paceline.comm.memory import signals
from paceline.comm.memory.meeting import LINE, Meeting
from paceline.errors import PartedError, PeerLostError

BUFFER = 256 << 10  # bytes
HEAD = struct.Struct("<qq")  # tag, bytes of the message
PAIR = 4 * LINE + 2 * BUFFER  # two signals, two heads, two buffers
NAP = 0.001  # seconds between looks at all workers, when any one's message will do


class Mailbox:
    """Between the workers of one group. Each direction of a pair is used by one thread at a time."""

    def __init__(self, store: Any, rank: int, world: int, **options: Any) -> None:
        """Every worker makes one."""
        self.rank, self.world = rank, world
        self._meeting = Meeting(store, rank, world, world * world * PAIR, **options)
        memory: Any = self._meeting.space.numpy()
        self._memory = memoryview(memory)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._sent, self._read = [0] * world, [0] * world  # pieces, by peer
        self._aside: list[deque[tuple[int, torch.Tensor]]] = [deque() for _ in range(world)]
        for peer in range(world):
            full, free = self._signals(peer, rank)
            signals.make(full)
            signals.make(free)
            for _ in range(2):
                signals.post(free)
        self._meeting.meet()

    def at(self, site: Callable[[], str]) -> None:
        """Says where in the script the next call was made, for the one who must explain it."""
        self._meeting.site = site

    def send(self, data: torch.Tensor, to: int, tag: int) -> None:
        """Sends bytes. Returns when they lie in shared memory: the last two pieces may not have been read."""
        full, free = self._signals(self.rank, to)
        for at in range(0, max(data.numel(), 1), BUFFER):
            self._take(free, to, "send")
            head, buffer = self._places(self.rank, to, self._sent[to])
            piece = data[at : at + BUFFER]
            self._memory[head : head + HEAD.size] = HEAD.pack(tag, data.numel())
            self._meeting.space[buffer : buffer + piece.numel()].copy_(piece)
            self._sent[to] += 1
            signals.post(full)

    def receive(self, data: torch.Tensor, source: int, tag: int) -> None:
        """Receives bytes into `data`. Waits for a message with this tag."""
        for index, (kept, message) in enumerate(self._aside[source]):
            if kept == tag:
                del self._aside[source][index]
                self._check(message.numel(), data, source)
                data.copy_(message)
                return
        while True:
            self._take(self._signals(source, self.rank)[0], source, "receive")
            head, _ = self._places(source, self.rank, self._read[source])
            got, size = HEAD.unpack(self._memory[head : head + HEAD.size])
            if got == tag:
                self._check(size, data, source)
                self._read_into(data, source)
                return
            message = torch.empty(size, dtype=torch.uint8)
            self._read_into(message, source)
            self._aside[source].append((got, message))

    def receive_any(self, data: torch.Tensor, tag: int) -> int:
        """Receives the next message with this tag, whoever sends it; gives the sender."""
        while True:
            for source in range(self.world):
                if source == self.rank:
                    continue
                here = any(kept == tag for kept, _ in self._aside[source])
                if here or self._next_tag(source) == tag:
                    self.receive(data, source, tag)
                    return source
            if self._meeting.gone():
                raise PeerLostError(f"Worker {self._meeting.gone()[0]} has ended, and a message is waited for.")
            time.sleep(NAP)

    def _next_tag(self, source: int) -> int | None:
        """Of the next message that has come; one that nobody asked for is put aside by `receive`."""
        if not signals.count(self._signals(source, self.rank)[0]):
            return None
        head, _ = self._places(source, self.rank, self._read[source])
        return int(HEAD.unpack(self._memory[head : head + HEAD.size])[0])

    def _read_into(self, data: torch.Tensor, source: int) -> None:
        """The first piece's signal has been taken."""
        full, free = self._signals(source, self.rank)
        for at in range(0, max(data.numel(), 1), BUFFER):
            if at:
                self._take(full, source, "receive")
            _, buffer = self._places(source, self.rank, self._read[source])
            piece = data[at : at + BUFFER]
            piece.copy_(self._meeting.space[buffer : buffer + piece.numel()])
            self._read[source] += 1
            signals.post(free)

    def _check(self, size: int, data: torch.Tensor, source: int) -> None:
        if size != data.numel():
            raise PartedError(
                f"Worker {self._meeting.names[source]} sent {size} bytes, and worker "
                f"{self._meeting.names[self.rank]} expects {data.numel()} at {self._meeting.site()}.",
                advice="A send and its receive must be of the same size and dtype.",
            )

    def _take(self, address: int, peer: int, doing: str) -> None:
        def look() -> None:
            if peer in self._meeting.gone() and not signals.count(address):
                raise PeerLostError(
                    f"Worker {self._meeting.names[peer]} has ended, in the middle of a {doing} at "
                    f"{self._meeting.site()}."
                )

        signals.take(address, self._meeting.spin, look)

    def _signals(self, source: int, to: int) -> tuple[int, int]:
        at = self._base + PAIR * (source * self.world + to)
        return at, at + LINE

    def _places(self, source: int, to: int, piece: int) -> tuple[int, int]:
        at, turn = PAIR * (source * self.world + to), piece & 1
        return at + (2 + turn) * LINE, at + 4 * LINE + turn * BUFFER
