"""Collectives on host tensors, through shared memory or over Gloo.

Both channels offer the same few collectives. Gradient buckets use a connection of their own, separate from rows and
small messages, so that a bucket that is ready early on one worker cannot be mistaken for a gather. Tensors are flat and
contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from paceline.comm.ending import CalledOff
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.flats import bytes_of
from paceline.comm.memory.reductions import Reductions, Shared, Sum
from paceline.comm.network.gloo import gloo_group
from paceline.torch_private import AllgatherOptions
from paceline.wire.link import within


class Channel(Protocol):
    """Every worker calls the same methods in the same order. All methods except `start` and `progress` wait for all
    workers. What a channel has no use for is done here."""

    name: str
    algorithms: tuple[str, ...] = ()  # the all-reduce algorithms available for buckets
    algorithm: str | None = None  # the algorithm in use; None: chosen by message size
    answers: bool = False  # a failed worker can answer any collective with its failure

    def agree(self, *, failed: bool) -> None:
        """Raises `CalledOff` if another worker has failed. A failed worker calls it with `failed=True`: the call then
        waits for all workers and does not raise."""

    def begin_again(self) -> None:
        """Every worker calls it after a collective that was called off."""
        return

    def all_reduce(self, flat: torch.Tensor, what: str) -> None:
        """Sums `flat` over the workers, in place."""

    def broadcast(self, flat: torch.Tensor, what: str) -> None:
        """Copies rank 0's `flat` to every worker, in place."""

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor], what: str) -> None:
        """Copies `own` of worker r into `into[r]` of every worker; sizes may differ."""

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared | None:
        """Shared memory for a bucket, which is summed in place; None if the channel has no shared memory."""
        return None

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        """Starts an in-place sum of a bucket. Every worker starts the buckets in the same order. `key` identifies the
        bucket, and `shapes` are the shapes of the gradients in the bucket: a compressor keeps state for them."""
        return flat  # summed in `finish`, which all workers call at the same point

    def progress(self) -> None:
        """Advances started sums without waiting."""
        return

    def finish(self, begun: Any) -> None:
        """Waits for a started sum."""


class MemoryChannel(Channel):
    """A channel between workers of one host, through shared memory."""

    name = "memory"
    answers = True

    def __init__(self, store: Any, rank: int, world: int, *, elastic: bool = False) -> None:
        self._rows = MemoryEngine(within(store, "rows"), rank, world, elastic=elastic)
        # For buckets outside shared memory (GPU buckets, elastic runs); created on first use. Not in an elastic run:
        # connecting is the one thing that a lost worker must not interrupt.
        self._unshared_store = within(store, "odd")
        self._unshared = MemoryEngine(self._unshared_store, rank, world, elastic=True) if elastic else None
        self._sums = None if elastic else Reductions(within(store, "sums"), rank, world)

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
        # A lost worker's own memory is lost with it: what it had given would not be the same on all others.
        return None if self._sums is None else self._sums.allocate(numel, dtype)

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        if shared is None or self._sums is None:
            return flat  # summed in `finish`, which all workers call at the same point
        return self._sums.start(shared, what)

    def progress(self) -> None:
        if self._sums is not None:
            self._sums.progress()

    def finish(self, begun: Sum | torch.Tensor) -> None:
        if isinstance(begun, Sum):
            assert self._sums is not None
            self._sums.finish(begun)
            return
        if self._unshared is None:
            self._unshared = MemoryEngine(self._unshared_store, self._rows.rank, self._rows.world)
        self._unshared.all_reduce(begun, name="gradients")


class GlooChannel(Channel):
    """A channel between workers on any hosts, over Gloo."""

    name = "gloo"

    def __init__(self, store: Any, rank: int, world: int, *, address: str) -> None:
        """`address`: the address at which the other workers reach this host."""
        self.world = world
        self._rows, self._buckets = (
            gloo_group(within(store, channel), rank, world, address=address) for channel in ("rows", "buckets")
        )

    def agree(self, *, failed: bool) -> None:
        count = torch.tensor([int(failed)], device="cpu")
        self._rows.allreduce([count], dist.AllreduceOptions()).wait()
        if count.item() and not failed:
            raise CalledOff

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
        padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        padded[: own.numel()] = own
        whole = torch.empty(self.world * longest, dtype=torch.uint8, device="cpu")
        self._rows._allgather_base(whole, padded).wait()
        for piece, row in zip(pieces, whole.split(longest), strict=True):
            piece.copy_(row[: piece.numel()])

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        return self._buckets.allreduce([flat], dist.AllreduceOptions())

    def finish(self, begun: Any) -> None:
        begun.wait()


class Pending:
    """A started collective."""

    def __init__(self, waiting: Callable[[str], Any], wait: Callable[[], Any], begun: Any = None) -> None:
        """`waiting`: see `Group.waiting`."""
        self._waiting, self._wait, self._begun = waiting, wait, begun

    @property
    def adding(self) -> tuple[float, float] | None:
        """Start and end time of this worker's share of the additions; None if the backend adds."""
        return self._begun.adding if self._begun is not None else None

    def finish(self, what: str) -> None:
        with self._waiting(what):
            self._wait()


# -- between GPUs, over NCCL ------------------------------------------------------------------------------------------
# Two communicators: one for rows and small sums, and one for gradient buckets. A bucket is sent by a gradient's hook as
# soon as the bucket is full, and rows are gathered wherever the script's graph crosses a sliced call: which of the two
# comes first may differ between workers, and within one communicator every worker must issue the same collectives in
# the same order.


class GpuChannel:
    """The collectives of one worker between GPU tensors. They are put on the current stream: nothing waits for the GPU.
    Every worker calls the same methods in the same order, apart for rows and for buckets."""

    def __init__(self, rank: int, world: int, make: Callable[[str], Any]) -> None:
        """`make` connects a process group of all workers; its argument names the group."""
        self.rank, self.world = rank, world
        self._rows, self._buckets = make("rows"), make("buckets")

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._rows.allreduce([tensor], dist.AllreduceOptions()).wait()

    def start(self, bucket: torch.Tensor) -> Callable[[], Any]:
        """Starts an in-place sum of a gradient bucket. The result makes the current stream wait for the sum."""
        wait: Callable[[], Any] = self._buckets.allreduce([bucket], dist.AllreduceOptions()).wait
        return wait

    def broadcast(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._rows.broadcast([tensor], options).wait()

    def gather(self, mine: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """The rows of all workers, along the first dimension, in rank order."""
        longest = max(sizes)
        if mine.shape[0] < longest:
            mine = torch.cat([mine, mine.new_zeros((longest - mine.shape[0], *mine.shape[1:]))])
        out = mine.new_empty((self.world * longest, *mine.shape[1:]))
        self._rows._allgather_base(out, mine).wait()
        if all(size == longest for size in sizes):
            return out
        return torch.cat([out[r * longest : r * longest + size] for r, size in enumerate(sizes)])


def over_nccl(store: Any, rank: int, world: int) -> GpuChannel:
    return GpuChannel(
        rank,
        world,
        lambda name: dist.ProcessGroupNCCL(within(store, name), rank, world),  # type: ignore[call-arg]
    )
