"""How the workers' tensors in host memory travel: through memory that they share, or over Gloo.

Both offer the same few collectives. Rows and small messages go one way, gradient buckets another, so that a bucket that
is ready early on one worker cannot be mistaken for a gather. Tensors are flat and contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from paceline.comm.called_off import CalledOff
from paceline.comm.gloo import gloo_group
from paceline.comm.link.client import within
from paceline.comm.memory.engine import Engine
from paceline.comm.memory.flats import bytes_of
from paceline.comm.memory.reductions import Reductions, Shared, Sum


class Channel(Protocol):
    """Every worker calls the same methods in the same order; all but `start` and `progress` wait for all of them."""

    name: str
    algorithms: tuple[str, ...]  # to choose from, for buckets
    algorithm: str | None  # the one that is used; None: whichever suits the size
    answers: bool  # a worker that has failed may answer any collective with that

    def agree(self, *, failed: bool) -> None:
        """Raises `CalledOff` where another worker has failed. One that has failed itself waits for all, and does
        not raise."""

    def begin_again(self) -> None:
        """Every worker calls it after a collective that was called off."""

    def all_reduce(self, flat: torch.Tensor, what: str) -> None:
        """Sums, in place."""

    def broadcast(self, flat: torch.Tensor, what: str) -> None:
        """Rank 0's, in place."""

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor], what: str) -> None:
        """`into[r]` becomes worker r's; sizes may differ."""

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared | None:
        """Memory for a bucket that is summed where it lies, if there is such a thing."""

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        """Begins to sum a bucket in place. The order of starting is everybody's. `key` is the bucket's own number, and
        `shapes` are of what lies in it: for whoever wants to remember something of it."""

    def progress(self) -> None:
        """A moment to get on with sums that were started."""

    def finish(self, begun: Any) -> None:
        """Waits for a sum that was started."""


class MemoryChannel:
    """Between workers of one host."""

    name = "memory"
    algorithms: tuple[str, ...] = ()
    algorithm: str | None = None
    answers = True

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._rows = Engine(within(store, "rows"), rank, world)
        self._odd: Engine | None = None  # for buckets that lie elsewhere (in a GPU): made when there is one
        self._odd_store = within(store, "odd")
        self._sums = Reductions(within(store, "sums"), rank, world)

    def agree(self, *, failed: bool) -> None:
        if failed:
            self._rows.call_off()
        else:
            self._rows.barrier()

    def begin_again(self) -> None:
        self._rows.begin_again()

    def all_reduce(self, flat: torch.Tensor, what: str) -> None:
        self._rows.all_reduce(flat, name=what)

    def broadcast(self, flat: torch.Tensor, what: str) -> None:
        self._rows.broadcast(flat, 0, name=what)

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor], what: str) -> None:
        self._rows.all_gather(own, into, name=what)

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared | None:
        return self._sums.allocate(numel, dtype)

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        if shared is None:
            return flat  # summed when it is waited for, since everybody waits at the same place
        return self._sums.start(shared, what)

    def progress(self) -> None:
        self._sums.progress()

    def finish(self, begun: Sum | torch.Tensor) -> None:
        if isinstance(begun, Sum):
            self._sums.finish(begun)
            return
        if self._odd is None:
            self._odd = Engine(self._odd_store, self._rows.rank, self._rows.world)
        self._odd.all_reduce(begun, name="gradients")


class GlooChannel:
    """Between workers anywhere."""

    name = "gloo"
    algorithms: tuple[str, ...] = ()
    algorithm: str | None = None
    answers = False

    def __init__(self, store: Any, rank: int, world: int, *, address: str) -> None:
        """`address`: where the others reach this worker's host."""
        self.world = world
        self._rows, self._buckets = (
            gloo_group(within(store, channel), rank, world, address=address) for channel in ("rows", "buckets")
        )

    def agree(self, *, failed: bool) -> None:
        count = torch.tensor([int(failed)])
        self._rows.allreduce([count], dist.AllreduceOptions()).wait()
        if count.item() and not failed:
            raise CalledOff

    def begin_again(self) -> None:
        pass

    def all_reduce(self, flat: torch.Tensor, what: str) -> None:
        self._rows.allreduce([flat], dist.AllreduceOptions()).wait()

    def broadcast(self, flat: torch.Tensor, what: str) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._rows.broadcast([bytes_of(flat)], options).wait()

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor], what: str) -> None:
        own, pieces = bytes_of(own), [bytes_of(piece) for piece in into]
        longest = max(piece.numel() for piece in pieces)
        if all(piece.numel() == longest for piece in pieces):
            self._rows.allgather([pieces], [own], AllgatherOptions()).wait()
            return
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: own.numel()] = own
        whole = torch.empty(self.world * longest, dtype=torch.uint8)
        self._rows._allgather_base(whole, padded).wait()
        for piece, row in zip(pieces, whole.split(longest), strict=True):
            piece.copy_(row[: piece.numel()])

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared | None:
        return None

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        return self._buckets.allreduce([flat], dist.AllreduceOptions())

    def progress(self) -> None:
        pass

    def finish(self, begun: Any) -> None:
        begun.wait()
