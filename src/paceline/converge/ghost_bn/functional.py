"""The computation of ghost batch norm: each ghost is normalised by its own mean and variance.

    y = w · (x − μ_g) / √(σ²_g + ε) + b            μ_g, σ²_g over the samples and pixels of ghost g, per channel
    ∂x = w · r · (∂y − mean_g(∂y) − x̂ · mean_g(∂y · x̂))       r = 1/√(σ²_g + ε), x̂ = (x − μ_g) · r

All ghosts are computed at once: by Triton kernels on a GPU, elsewhere by torch operations that give each sample the
statistics of its ghost. Half precision is computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from paceline.converge.ghost_bn.split import Ghosts
from paceline.converge.optimizers import tensor_tables

Running = tuple[Tensor, Tensor, float]  # mean, variance, momentum


def ghost_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running | None, *, size: int, eps: float
) -> Tensor:
    """Batch norm over ghosts of `size` samples. Updates the `running` statistics with those of the whole batch."""
    ghosts = Ghosts.of(x.shape[0], size, _pixels(x))
    if torch.compiler.is_compiling():
        # torch.compile generates its own kernels from plain operations.
        y, mean, variance = _plain(x, weight, bias, ghosts, eps)
        if running is not None:
            _track(mean.detach(), variance.detach(), running, ghosts, x.numel() // x.shape[1])
        return y
    return _GhostNorm.apply(x, weight, bias, running, ghosts, eps)


class _GhostNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, running: Running | None, ghosts: Ghosts, eps: float
    ) -> Tensor:
        ctx.ghosts, ctx.eps = ghosts, eps
        ctx.fused = (
            x.device.type in tensor_tables.DEVICES and x.dtype in tensor_tables.DTYPES and tensor_tables.has_triton()
        )
        if ctx.fused:
            from paceline.converge.ghost_bn.fused import forward

            y, laid_out, (table, ctx.rows) = forward(x, weight, bias, running, ghosts, eps)
            # Backward reads the copy if there is one; the input is kept for gradients of gradients.
            ctx.save_for_backward(x, weight, bias, table, None if laid_out is x else laid_out)
            return y
        y, mean, variance = _plain(x, weight, bias, ghosts, eps)
        if running is not None:
            _track(mean, variance, running, ghosts, x.numel() // x.shape[1])
        ctx.save_for_backward(x, weight, bias, mean, variance)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (dy,) = grads
        x, weight, bias, first, second = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients need differentiable operations
            return (*_differentiable_gradients(ctx, dy, x, weight, bias), None, None, None)
        if ctx.fused:
            from paceline.converge.ghost_bn.fused import backward

            dx, dw, db = backward(dy, x if second is None else second, (first, ctx.rows), ctx.ghosts)
        else:
            dx, dw, db = _gradients(dy, x, weight, first, second, ctx.ghosts, ctx.eps)
        return (
            dx if ctx.needs_input_grad[0] else None,
            dw.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            db.to(bias.dtype) if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
        )


def _differentiable_gradients(ctx: Any, dy: Tensor, x: Tensor, weight: Any, bias: Any) -> list[Tensor | None]:
    y, _, _ = _plain(x, weight, bias, ctx.ghosts, ctx.eps)
    wanted = [t for t, needed in zip((x, weight, bias), ctx.needs_input_grad[:3], strict=True) if needed]
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[:3]]


def _plain(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, ghosts: Ghosts, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the mean and variance of each ghost and channel."""
    wide = _wide(x)
    count = _counts(ghosts, wide)
    mean = _add_up(_over_pixels(wide), ghosts) / count
    centred = wide - _of_samples(mean, ghosts, x)
    variance = _add_up(_over_pixels(centred * centred), ghosts) / count
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    y = centred * _of_samples(scale, ghosts, x)
    if bias is not None:
        y = y + bias.view(1, -1, *[1] * (x.dim() - 2))
    return y.to(x.dtype), mean, variance


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, variance: Tensor, ghosts: Ghosts, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, centred = _wide(dy), _wide(x) - _of_samples(mean, ghosts, x)
    count = _counts(ghosts, centred)
    rstd = torch.rsqrt(variance + eps)
    plain = _add_up(_over_pixels(grad), ghosts)
    crossed = _add_up(_over_pixels(grad * centred), ghosts)
    scale = rstd if weight is None else rstd * weight
    slope, shift = -scale * rstd * rstd * crossed / count, -scale * plain / count
    dx = centred.mul_(_of_samples(slope, ghosts, x)).add_(_of_samples(shift, ghosts, x))
    dx.addcmul_(grad, _of_samples(scale, ghosts, x))
    return dx.to(x.dtype), (crossed * rstd).sum(0), plain.sum(0)


@torch.no_grad()
def _track(mean: Tensor, variance: Tensor, running: Running, ghosts: Ghosts, values: int) -> None:
    """Updates the running statistics with the mean and unbiased variance of the whole batch."""
    running_mean, running_var, momentum = running
    share = _counts(ghosts, mean) * (1.0 / ghosts.batch)
    whole = (share * mean).sum(0)
    spread = (share * (variance + (mean - whole).square())).sum(0) * (values / (values - 1))
    running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    running_var.lerp_(spread.to(running_var.dtype), momentum)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _over_pixels(x: Tensor) -> Tensor:
    """The sum over pixels, for each sample and channel."""
    return x.flatten(2).sum(2) if x.dim() > 2 else x


def _add_up(of_samples: Tensor, ghosts: Ghosts) -> Tensor:
    """The sum over each ghost's samples."""
    whole = (ghosts.count - 1) * ghosts.size
    last = of_samples[whole:].sum(0, keepdim=True)
    if not whole:
        return last
    return torch.cat([of_samples[:whole].unflatten(0, (-1, ghosts.size)).sum(1), last])


def _of_samples(of_ghosts: Tensor, ghosts: Ghosts, x: Tensor) -> Tensor:
    """For each sample the row of its ghost, shaped to broadcast with x."""
    whole = (ghosts.count - 1) * ghosts.size
    last = of_ghosts[-1:].expand(ghosts.batch - whole, -1)
    rows = torch.cat([of_ghosts[:-1].repeat_interleave(ghosts.size, 0), last]) if whole else last
    return rows.reshape(*rows.shape, *[1] * (x.dim() - 2))


def _counts(ghosts: Ghosts, like: Tensor) -> Tensor:
    """The number of values per channel in each ghost, as a column."""
    return like.new_tensor(ghosts.samples).mul_(_pixels(like)).unsqueeze_(1)


def _pixels(x: Tensor) -> int:
    return x.numel() // (x.shape[0] * x.shape[1])
