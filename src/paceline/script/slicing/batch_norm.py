"""Batch norm over the whole batch (`--sync-bn`), also where a worker holds only a slice.

Without it, batch norm sees the worker's slice, as under DDP. With it, mean and variance and their gradients are summed
over the workers, in two passes for accuracy: the numbers agree with one process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.script.seams.stage import Stage
from paceline.script.slicing import crossings
from paceline.script.slicing.crossings import Split


def synchronise(stage: Stage) -> None:
    """From now on every batch norm that uses batch statistics sees the whole batch."""
    plain = _BatchNorm.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        split = stage.views.split
        uses_batch = self.training or (self.running_mean is None and self.running_var is None)
        if split is None or not uses_batch:
            return plain(self, x)
        return _normalise(self, x, split)

    _BatchNorm.forward = forward  # type: ignore[method-assign, assignment]


def _normalise(norm: Any, x: torch.Tensor, split: Split) -> torch.Tensor:
    norm._check_input_dim(x)
    if norm.training and split.batch == 1 and x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    dims = [d for d in range(x.dim()) if d != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    counted = float(split.mine > 0)  # a borrowed row must not enter the statistics
    count = wide.new_full((1,), counted * x.numel() / x.shape[1])
    sums = crossings.reduce_inside(torch.cat([wide.sum(dims) * counted, count]), split.group)
    total = sums[-1].detach()
    mean = sums[:-1] / total
    centred = wide - mean.view(shape)
    variance = crossings.reduce_inside((centred * centred).sum(dims) * counted, split.group) / total
    y = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    if norm.training and norm.track_running_stats and norm.running_mean is not None:
        _track(norm, mean.detach(), variance.detach() * total / (total - 1).clamp_min(1))
    return y.to(x.dtype)


@torch.no_grad()
def _track(norm: Any, mean: torch.Tensor, variance: torch.Tensor) -> None:
    norm.num_batches_tracked.add_(1)
    momentum = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), momentum)
