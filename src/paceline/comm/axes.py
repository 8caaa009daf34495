"""The axes along which workers are laid out: which workers share rows, which share the parts of a tensor.

Workers are numbered with `tensor` fastest and `pipe` slowest, so that those who exchange most are neighbours.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from itertools import product
from math import prod


@dataclass(frozen=True, slots=True)
class Axes:
    """How many workers lie along each axis; their product is the number of workers."""

    pipe: int = 1  # stages of a pipeline
    data: int = 1  # rows of the batch; parameters are copies
    shard: int = 1  # rows of the batch; each worker keeps a part of the parameters
    tensor: int = 1  # the same rows; each worker computes a part of each layer

    @property
    def world(self) -> int:
        return prod(astuple(self))

    def members(self, rank: int, *along: str) -> tuple[int, ...]:
        """The workers whose coordinates equal this worker's on all axes but these, in the order of their ranks."""
        coordinates = list(product(*map(range, astuple(self))))
        fixed = [number for number, field in enumerate(fields(self)) if field.name not in along]
        return tuple(
            other for other, at in enumerate(coordinates) if all(at[axis] == coordinates[rank][axis] for axis in fixed)
        )

    def coordinate(self, rank: int, axis: str) -> int:
        """Where the worker is on this axis."""
        return self.members(rank, axis).index(rank)
