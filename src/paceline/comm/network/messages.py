"""What the network leg is made of: messages between two workers, started now and waited for later.

A `Wire` knows nothing of sums. The algorithms (`algorithms.py`) are written on it, so that they run over whatever can
carry bytes; here it is Gloo. A wire belongs to one thread at a time. Its workers call the algorithms on it in the same
order.
"""

from __future__ import annotations

import datetime
import threading
from collections import Counter
from typing import Any, Protocol

import torch

from paceline.comm.gloo import gloo_group
from paceline.comm.link.client import within
from paceline.errors import PeerLostError

AT_ONCE = datetime.timedelta(milliseconds=1)
TAGS = 1 << 30


class Transfer(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Returns when a receive has filled its tensor, or when a sent tensor may be changed again."""


class Wire(Protocol):
    """Messages between `world` workers, of which this one is `rank`.

    Between two workers messages arrive in the order in which they were started on each side, and the receiver knows how
    long each is. Neither call waits. The tensor is contiguous, on the host, and left alone until `wait()` has returned.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def send(self, tensor: torch.Tensor, to: int) -> Transfer: ...

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer: ...

    def close(self) -> None:
        """Gives up, from any thread: what is under way raises `PeerLostError`, here and on the peers."""


class GlooWire:
    """A wire over TCP by Gloo.

    A peer that is gone makes every `wait()` raise `PeerLostError`, whichever peer it waits for: who has noticed closes
    its own connections, so that those who wait for it notice too.
    """

    def __init__(self, upward: Any, downward: Any) -> None:
        """Of two `ProcessGroupGloo` that nobody else uses: messages to higher ranks travel on the first, to lower ones
        on the second. Gloo sends only what it was told to be waited for; on a connection of its own that word need not
        queue behind messages that go the same way, and both directions of the network are always busy."""
        self._upward, self._downward = upward, downward
        self.rank: int = upward.rank()
        self.world: int = upward.size()
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._closing = threading.Lock()

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        group = self._upward if self.rank < to else self._downward
        tag = self._sent[to] % TAGS  # both sides count alike
        self._sent[to] += 1
        try:
            return _GlooTransfer(self, group.send([tensor], to, tag), f"for worker {to} to take a message")
        except RuntimeError as error:
            raise self.lost(error, f"sending to worker {to}") from error

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        group = self._upward if source < self.rank else self._downward
        tag = self._received[source] % TAGS
        self._received[source] += 1
        try:
            return _GlooTransfer(self, group.recv([tensor], source, tag), f"for a message of worker {source}")
        except RuntimeError as error:
            raise self.lost(error, f"receiving from worker {source}") from error

    def close(self) -> None:
        if not self._closing.acquire(blocking=False):  # once
            return
        # Gloo has no way to close a connection, but a receive that times out breaks all of them, at both ends.
        never = torch.empty(1, dtype=torch.uint8)
        for group in (self._upward, self._downward):
            for peer in range(self.world):
                try:
                    if peer != self.rank:
                        group.recv([never], peer, TAGS).wait(AT_ONCE)
                except RuntimeError:
                    continue  # as meant

    def lost(self, error: RuntimeError, doing: str) -> PeerLostError:
        """Nothing but a broken connection can fail here. Closes all others."""
        self.close()
        return PeerLostError(
            f"Worker {self.rank} of {self.world} on the network lost a peer while {doing}: {_reason(error)}."
        )


class _GlooTransfer:
    __slots__ = ("_doing", "_wire", "_work")

    def __init__(self, wire: GlooWire, work: Any, doing: str) -> None:
        self._wire, self._work, self._doing = wire, work, doing

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._wire.lost(error, f"waiting {self._doing}") from error


def connect(store: Any, name: str, rank: int, world: int, *, address: str | None = None) -> GlooWire:
    """A wire between `world` workers that agree on `name`. Each of them calls it; it waits for all of them.

    `address`: of this host, by which the others reach it. Without one it is what the host's name resolves to."""
    places = [within(store, f"paceline/wire/{name}/{way}") for way in ("up", "down")]
    try:
        return GlooWire(*(gloo_group(place, rank, world, address=address) for place in places))
    except RuntimeError as error:
        reason = _reason(error)
        raise PeerLostError(f"Worker {rank} of {world} could not join the network leg {name}: {reason}.") from error


def _reason(error: RuntimeError) -> str:
    """Gloo's own words, without the place in its source and its good wishes."""
    return str(error).splitlines()[0].split(". This is")[0].split(".cc:", 1)[-1].partition("] ")[2] or str(error)
