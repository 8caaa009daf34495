"""Asynchronous point-to-point messages between workers on a network: the `Wire` interface and its Gloo implementation.

A `Wire` only moves bytes. The all-reduce algorithms (`algorithms.py`) use nothing but this interface, so that they run
over any transport. One thread at a time uses a wire. All workers of a wire call the algorithms in the same order.
"""

from __future__ import annotations

import datetime
import threading
from collections import Counter
from typing import Any, Protocol

import torch

from paceline.comm.network.gloo import gloo_group
from paceline.errors import PeerLostError
from paceline.wire.link import within

AT_ONCE = datetime.timedelta(milliseconds=1)  # a time-out that expires at once
TAGS = 1 << 30  # message tags are counted modulo this number


class Transfer(Protocol):
    """A started message."""

    def wait(self) -> None:
        """Returns when the receive has filled its tensor, or when the sent tensor may be changed again."""


class Wire(Protocol):
    """Messages between `world` workers; `rank` is this worker.

    Messages between two workers arrive in the order in which they were started, and the receiver knows the length of
    each message in advance. `send` and `receive` do not wait. The tensor must be a contiguous host tensor, and the
    caller must not touch the tensor until `wait()` has returned.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def send(self, tensor: torch.Tensor, to: int) -> Transfer: ...

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer: ...

    def close(self) -> None:
        """Closes the connections, from any thread: started messages raise `PeerLostError`, here and on the peers."""


class GlooWire:
    """A wire over TCP, with Gloo.

    If a peer is gone, every `wait()` on every worker raises `PeerLostError`, also a wait for another peer: a worker
    that notices the loss closes its own connections, so that the workers that wait for it notice, too.
    """

    def __init__(self, upward: Any, downward: Any) -> None:
        """`upward` and `downward` are two `ProcessGroupGloo` for the exclusive use of this wire: messages to higher
        ranks use the first, messages to lower ranks the second. Gloo sends data only after the receiver has announced
        its receive. With two connections this announcement does not queue behind data in the same direction, and both
        directions of the network stay busy."""
        self._upward, self._downward = upward, downward
        self.rank: int = upward.rank()
        self.world: int = upward.size()
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._closing = threading.Lock()

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        group = self._upward if self.rank < to else self._downward
        tag = self._sent[to] % TAGS  # the receiver counts in the same way
        self._sent[to] += 1
        try:
            return _GlooTransfer(self, group.send([tensor], to, tag), f"for worker {to} to receive a message")
        except RuntimeError as error:
            raise self.lost(error, f"sending to worker {to}") from error

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        group = self._upward if source < self.rank else self._downward
        tag = self._received[source] % TAGS
        self._received[source] += 1
        try:
            return _GlooTransfer(self, group.recv([tensor], source, tag), f"for a message from worker {source}")
        except RuntimeError as error:
            raise self.lost(error, f"receiving from worker {source}") from error

    def close(self) -> None:
        if not self._closing.acquire(blocking=False):  # close only once
            return
        # Gloo cannot close a connection, but a receive that times out breaks all connections of a group, at both ends.
        never = torch.empty(1, dtype=torch.uint8, device="cpu")
        for group in (self._upward, self._downward):
            for peer in range(self.world):
                try:
                    if peer != self.rank:
                        group.recv([never], peer, TAGS).wait(AT_ONCE)
                except RuntimeError:
                    continue  # the time-out is intended

    def lost(self, error: RuntimeError, doing: str) -> PeerLostError:
        """The error for a broken connection, the only failure that Gloo has here. Closes all other connections."""
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
    """A wire between `world` workers. Every worker calls it with the same `name`; waits for all.

    `address`: the address at which the other workers reach this host; None means the address that the host name
    resolves to."""
    places = [within(store, f"paceline/wire/{name}/{way}") for way in ("up", "down")]
    try:
        return GlooWire(*(gloo_group(place, rank, world, address=address) for place in places))
    except RuntimeError as error:
        reason = _reason(error)
        raise PeerLostError(f"Worker {rank} of {world} could not connect to the network {name}: {reason}.") from error


def _reason(error: RuntimeError) -> str:
    """Gloo's message, without the line of its source and without its general advice."""
    return str(error).splitlines()[0].split(". This is")[0].split(".cc:", 1)[-1].partition("] ")[2] or str(error)
