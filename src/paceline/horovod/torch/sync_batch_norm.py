"""Batch norm over the batches of all ranks, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.nn import functional

from paceline.horovod.common import basics
from paceline.horovod.torch.mpi_ops import Sum, allgather_async, allreduce_, synchronize
from paceline.script.rows.crossings import Split
from paceline.script.seams.batch_norm import norm_whole_batch
from paceline.torch_private import BatchNorm


class SyncBatchNorm(BatchNorm):
    """In training, mean and variance are those of the batches of all ranks together, whose sizes may differ. In
    evaluation, or with one rank, it is torch's batch norm."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        uses_batch = self.training or (self.running_mean is None and self.running_var is None)
        momentum = self.momentum if self.momentum is not None else 0.0
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # a plain average over all batches
                momentum = 1.0 / float(self.num_batches_tracked)
        keeps = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if keeps else (None, None)
        if not uses_batch or basics.size() == 1:
            return functional.batch_norm(input, mean, var, self.weight, self.bias, uses_batch, momentum, self.eps)
        ranks, rows = _Ranks(), len(input)
        sizes = (int(rank != ranks.rank or rows > 0) for rank in range(ranks.world))
        split = Split(cast(Any, ranks), tuple(sizes))  # only whether this rank has rows matters
        # A borrowed row counts for nothing; as a part of the graph, it takes backward on, which all ranks wait for.
        own = input if rows else torch.cat([input, input.new_zeros((1, *input.shape[1:]))])
        return norm_whole_batch(own, mean, var, self.weight, self.bias, momentum, self.eps, split)[:rows]


class _Ranks:
    """All ranks, as a batch norm over the whole batch asks a group of workers. The gradients of weight and bias stay
    this rank's: the optimizer reduces them with all others."""

    def __init__(self) -> None:
        self.rank, self.world = basics.rank(), basics.size()

    def gather_vectors(self, vector: torch.Tensor, what: str) -> torch.Tensor:
        return self.gather_rows(vector[None], 0, (), what)

    def gather_rows(self, rows: torch.Tensor, dim: int, sizes: Sequence[int], what: str) -> torch.Tensor:
        table: torch.Tensor = synchronize(allgather_async(rows, f"sync_batch_norm.moments.{rows.shape[1]}"))
        return table

    def all_reduce(self, sums: torch.Tensor, what: str) -> None:
        allreduce_(sums, name=f"sync_batch_norm.gradients.{len(sums)}", op=Sum)
