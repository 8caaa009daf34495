"""Collectives between GPUs, over NCCL.

Two communicators: one for rows and small sums, and one for gradient buckets. A bucket is sent by a gradient's hook as
soon as the bucket is full, and rows are gathered wherever the script's graph crosses a sliced call: which of the two
comes first may differ between workers, and within one communicator every worker must issue the same collectives in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from paceline.wire.link import within


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
