"""A mesh with the axes data and shard: copies of the model along `data`, parts of each copy along `shard`.

    paceline run -n 4 --strategy "mesh(data=2,shard=2)" train.py

This is `sharded` with replicas, under the names of a mesh: rows lie on both axes, parameters are gathered along `shard`
only, and gradients are averaged over both axes.
"""

from __future__ import annotations

from paceline.comm.axes import Axes
from paceline.errors import UsageError
from paceline.strategies.sharded import Sharded


class ShardedMesh(Sharded):
    """When a peer dies, the message that misses it raises."""

    name = "mesh"

    def __init__(self, data: int = 0, shard: int = 2) -> None:
        """`data` and `shard`: the number of workers on each axis; data=0: as many as there are."""
        super().__init__()
        self.data, self.shard = data, shard

    def axes(self, workers: int) -> Axes:
        self.replicas = self.data or workers // self.shard
        if self.replicas * self.shard != workers:
            raise UsageError(
                f"mesh(data={self.data or '…'},shard={self.shard}) needs data × shard workers; the run has {workers}.",
                advice=f"Type: -n {max(self.replicas, 1) * self.shard}",
            )
        return super().axes(workers)
