"""Where the samples of a tensor lie, and which of its rows are this worker's.

Dimension `dim` counts `outer` × samples × `inner` rows. A model's output has one row per sample (outer = inner = 1).
`logits.view(-1, V)` makes of (samples, time, V) a dimension with inner = time, and of (time, samples, V), as in
sequence-first models, one with outer = time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one tensor. `split` says how the samples are split between workers."""

    split: Split
    dim: int
    outer: int = 1
    inner: int = 1
    order: tuple[int, ...] = ()  # of the dimensions in the memory of a model's output: see `crossings.memory_order`

    @property
    def size(self) -> int:
        """The whole tensor's size along `dim`."""
        return self.outer * self.split.batch * self.inner

    def at(self, dim: int) -> Layout:
        """The same rows along another dimension."""
        return self if dim == self.dim and not self.order else Layout(self.split, dim, self.outer, self.inner)

    def has_rows_of(self, other: Layout) -> bool:
        """Whether the rows of both are the same samples' rows, in the same order."""
        same = self.split is other.split or self.split.sizes == other.split.sizes
        return same and self.outer == other.outer and self.inner == other.inner

    def whole_shape(self, local: Sequence[int]) -> torch.Size:
        return torch.Size((*local[: self.dim], self.size, *local[self.dim + 1 :]))

    def local_shape(self, whole: Sequence[int]) -> list[int]:
        return [*whole[: self.dim], self.outer * self.split.mine * self.inner, *whole[self.dim + 1 :]]

    def whole_strides(self, local: torch.Tensor) -> list[int]:
        """The strides of the whole tensor, laid out as own rows are: steps over all rows are longer."""
        own, row = local.shape[self.dim], local.stride(self.dim)
        return [
            stride * self.size // own if dim != self.dim and stride >= row * own else stride
            for dim, stride in enumerate(local.stride())
        ]

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """This worker's rows of a whole tensor."""
        rows = self.split.times(self.inner)
        if self.outer == 1:
            return crossings.cut(whole, self.dim, rows)
        apart = whole.unflatten(self.dim, (self.outer, -1))
        return crossings.cut(apart, self.dim + 1, rows).flatten(self.dim, self.dim + 1)

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        """All workers' rows, as one whole tensor, laid out as own rows are. Called by every worker; waits for all of
        them."""
        rows = self.split.times(self.inner)
        order = self._memory_order(local)
        if self.outer == 1:
            return crossings.gather(local, self.dim, rows, order)
        apart = local.unflatten(self.dim, (self.outer, -1))
        return crossings.gather(apart, self.dim + 1, rows).flatten(self.dim, self.dim + 1)

    def _memory_order(self, local: torch.Tensor) -> tuple[int, ...]:
        """The order that all workers use. Of a single row the memory does not tell: a worker with more rows does."""
        sizes, order = self.split.sizes, crossings.memory_order(local)
        if min(sizes) > 1 or max(sizes) < 2:
            return order if min(sizes) > 1 else self.order
        told = self.split.group.gather_objects(order, "the order of memory")
        return tuple(told[sizes.index(max(sizes))])

    def reshaped(self, old: Sequence[int], new: Sequence[int]) -> Layout | None:
        """The layout after a reshape of the whole tensor from `old` to `new`; None if the rows are then not along one
        dimension."""
        batch = self.split.batch
        before, after = prod(old[: self.dim]) * self.outer, self.inner * prod(old[self.dim + 1 :])
        prefix, suffix = 1, prod(new)
        for dim, size in enumerate(new):
            suffix = suffix // size if size else 0
            if not suffix:
                return None
            outer, inner = before // prefix, after // suffix
            if before % prefix == 0 and after % suffix == 0 and size == outer * batch * inner:
                return Layout(self.split, dim, outer, inner)
            prefix *= size
        return None
