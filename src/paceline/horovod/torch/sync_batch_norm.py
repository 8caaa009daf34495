"""Batch norm over the batches of all ranks, on CPUs and GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from paceline.horovod.common import basics
from paceline.horovod.torch.mpi_ops import Sum, allgather_async, allreduce_async_, synchronize
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
        result: torch.Tensor = _BatchNormOfAllRanks.apply(
            input.contiguous(), self.weight, self.bias, mean, var, self.eps, momentum
        )
        return result


class _BatchNormOfAllRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        momentum: float,
    ) -> torch.Tensor:
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        rest = [0, *range(2, input.dim())]
        count = wide.numel() // wide.shape[1]
        own_var, own_mean = torch.var_mean(wide, rest, correction=0) if count else wide.new_zeros((2, wide.shape[1]))
        own = torch.stack([own_mean, own_var, torch.full_like(own_mean, count)])[None]
        every = synchronize(allgather_async(own.contiguous(), f"sync_batch_norm.moments.{input.shape[1]}"))
        # Each rank's mean and variance, weighted by its count: never the small difference of two large squares.
        counts = every[:, 2]
        total = counts.sum(0)
        mean = (every[:, 0] * counts).sum(0) / total
        var = ((every[:, 1] + (every[:, 0] - mean).square()) * counts).sum(0) / total
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * total / (total - 1).clamp(min=1)).to(running_var.dtype), momentum)
        scale = torch.rsqrt(var + eps)
        shape = (1, -1, *[1] * (input.dim() - 2))
        normal = (wide - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normal, weight, scale, total)
        ctx.dtype = input.dtype
        output = normal if weight is None else normal * weight.view(shape)
        return (output if bias is None else output + bias.view(shape)).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        normal, weight, scale, total = ctx.saved_tensors
        grad = grads[0].to(normal.dtype)
        rest, shape = [0, *range(2, grad.dim())], (1, -1, *[1] * (grad.dim() - 2))
        sums = torch.stack([grad.sum(rest), (grad * normal).sum(rest)])
        # The gradients of weight and bias are this rank's: the optimizer reduces them with all others.
        grad_bias, grad_weight = sums[0].clone(), sums[1].clone()
        synchronize(allreduce_async_(sums, name=f"sync_batch_norm.gradients.{len(total)}", op=Sum))
        through = grad - (sums[0] / total).view(shape) - normal * (sums[1] / total).view(shape)
        grad_input = through * (scale if weight is None else scale * weight).view(shape)
        has_weight = weight is not None
        return (
            grad_input.to(ctx.dtype),
            grad_weight.to(weight.dtype) if has_weight else None,
            grad_bias.to(weight.dtype) if has_weight else None,
            *[None] * 4,
        )
