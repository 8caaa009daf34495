"""Batch norm over the whole batch, also where a worker holds only a slice. `--mod bn=local` switches it off.

    forward    each worker's count, mean and variance of its rows, per channel; one exchange; with M2 = n·variance
               combined as  mean = Σ n_r·mean_r / n   M2 = Σ M2_r + Σ n_r·(mean_r − mean)²   (Chan et al., 1979)
    backward   one exchange of the sums S₁ = Σ ∂y and S₂ = Σ ∂y·x̂, then  ∂x = w·r·(∂y − S₁/n − x̂·S₂/n)
               with x̂ = (x − mean)·r and r = 1/√(var + ε); each worker keeps its own rows' ∂w and ∂b

The combined variance is as accurate as two passes over the batch. Statistics of half-precision inputs are computed in
float32, as torch does. A borrowed row counts for nothing. Every worker calls each exchange in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from paceline.script.patches import patch
from paceline.script.proof.recorder import Recorder, norm
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split
from paceline.script.seams.stage import Stage

HALVES = (torch.float16, torch.bfloat16)
WHAT = "the statistics of batch norm"
LANES = 8  # torch's kernel sums planes that are smaller than a vector register at a fifth of the speed of three passes


def find(stage: Stage) -> Callable[[], None]:
    """From now on every batch norm that uses batch statistics inside a sliced call sees the whole batch. All of torch's
    batch norms call F.batch_norm. Returns a function that removes the patch."""
    plain = F.batch_norm

    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        split = stage.views.split_for_norms if training else None
        # torch.compile warns of the look at the thread.
        elsewhere = not torch.compiler.is_compiling() and stage.is_elsewhere()
        rest = (running_mean, running_var, weight, bias, training, momentum, eps)
        if isinstance(Recorder.active, Recorder) and training and input.numel() == input.shape[1]:
            compute = partial(torch.batch_norm, input, weight, bias, None, None, True, momentum, eps, False)  # one row
        elif split is None or not split.batch or elsewhere:
            compute = partial(plain, input, *rest)
        elif has_torch_function((input, weight, bias)):  # a part of a tensor, which a strategy gathers first
            compute = partial(handle_torch_function, batch_norm, (input, weight, bias), input, *rest)
        else:
            compute = partial(norm_whole_batch, input, running_mean, running_var, weight, bias, momentum, eps, split)
        if Recorder.active is None or elsewhere:
            return compute()
        with norm():
            return compute()

    return patch(F, "batch_norm", batch_norm)


def norm_whole_batch(
    x: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
    split: Split,
) -> torch.Tensor:
    """What F.batch_norm in training mode returns for these rows of the batch."""
    if split.batch == 1 and x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")
    if eps <= 0.0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    with torch.no_grad():
        mean, variance, total = _statistics(x, split)
        if running_mean is not None:
            running_mean.lerp_(_in(mean, running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = variance * (total / (total - 1))
            running_var.lerp_(_in(unbiased, running_var.dtype), momentum)
    return _WholeNorm.apply(x, weight, bias, mean, variance, total, eps, split)


def _statistics(x: torch.Tensor, split: Split) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Mean and biased variance over the whole batch, per channel, and the number of values that they cover."""
    mean, variance = torch.batch_norm_update_stats(_wide(x), None, None, 0.0)
    channels, counted = len(mean), x.numel() // x.shape[1] if split.mine else 0
    if not counted:  # a borrowed row: also where it holds NaN
        mean, variance = torch.zeros_like(mean), torch.zeros_like(variance)
    if x.is_cuda:
        told = torch.cat([mean, variance * counted, mean.new_full((1,), counted)])
        table = split.group.gather_rows(told.unsqueeze(0), 0, (1,) * split.group.world, WHAT)
        means, m2, counts = table.split((channels, channels, 1), 1)
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        return mean, (m2.sum(0) + ((means - mean).square() * counts).sum(0)) / total, total
    # The same in numpy, with few calls: each costs up to 10 µs, since the passes over x have emptied the caches.
    told = torch.cat((mean, variance, mean.new_full((1,), counted)))
    rows = split.group.gather_vectors(told, WHAT).numpy().astype(np.float64)
    means, variances, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1]
    number = float(counts.sum())
    share = counts / number
    centre = share @ means
    means -= centre
    means *= means
    means += variances
    found = np.empty((2, channels), dtype=mean.numpy().dtype)
    found[0], found[1] = centre, share @ means
    mean, variance = torch.from_numpy(found)
    return mean, variance, number


class _WholeNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        total: Any,
        eps: float,
        split: Split,
    ) -> torch.Tensor:
        ctx.eps, ctx.split, ctx.total = eps, split, total
        ctx.save_for_backward(x, weight, mean, variance)
        if x.is_cuda:
            return torch.batch_norm_elemt(x, weight, bias, mean, torch.rsqrt(variance + eps), eps)
        return _in(_normalise(x, mean, variance, weight, bias, eps), x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            dx, dw, db = _differentiable_gradients(dy, x, weight, ctx.eps, ctx.split)
        else:
            dx, dw, db = _gradients(dy, x, weight, mean, variance, ctx.total, ctx.eps, ctx.split)
        needed = ctx.needs_input_grad
        return (
            _in(dx, x.dtype) if needed[0] else None,
            _in(dw, weight.dtype) if needed[1] else None,
            db if needed[2] else None,
            *(None,) * 5,
        )


def _gradients(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    total: Any,
    eps: float,
    split: Split,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not x.is_cuda:
        return _gradients_on_cpu(dy, x, weight, mean, variance, total, eps, split)
    invstd = torch.rsqrt(variance + eps)
    scale = invstd if weight is None else invstd * weight.to(invstd.dtype)
    s1, s2, *_ = torch.batch_norm_backward_reduce(dy, x, mean, invstd, weight, True, False, False)
    sums, s1, s2 = _summed(s1, s2 * invstd, split)
    if not split.mine:
        return torch.zeros_like(x), s2, s1
    # ∂x = w·r·∂y + [(x − mean)·r·(−w·r·S₂/n) − w·r·S₁/n]: the bracket is a batch norm with other weights.
    bias, slope = (sums.view(2, -1) * (scale / -total)).unbind()
    dx = _normalise(x, mean, variance, slope, bias, eps)
    return dx.addcmul_(dy.to(dx.dtype), _along_channels(scale, x)), s2, s1


def _gradients_on_cpu(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    total: float,
    eps: float,
    split: Split,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with few calls on vectors, each of which costs as much as a pass over a small layer's gradient."""
    x, dy = _wide(x), _wide(dy)
    r = 1 / np.sqrt(variance.numpy() + eps)
    # A copy: `numpy()` makes memory fixed in size, and a strategy that splits parameters frees that of its weights.
    scale = r if weight is None else r * weight.detach().to(mean.dtype, copy=True).numpy()
    sums, s1, s2 = _summed(*_sums(dy, x, mean, variance, r, eps), split)
    if not split.mine:
        return torch.zeros_like(x), s2, s1
    bias, slope = torch.from_numpy(sums.numpy().reshape(2, -1) * (scale * (-1 / total))).unbind()
    dx = torch.batch_norm(x, slope, bias, mean, variance, False, 0.0, eps, False)
    return dx.addcmul_(dy, _along_channels(torch.from_numpy(scale), x)), s2, s1


def _summed(s1: torch.Tensor, s2: torch.Tensor, split: Split) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both sums over all workers, in one vector; and those of own rows. Every worker calls it; waits for all."""
    if not split.mine:  # a borrowed row
        s1, s2 = torch.zeros_like(s1), torch.zeros_like(s2)
    sums = torch.cat([s1, s2])
    split.group.all_reduce(sums, WHAT)
    return sums, s1, s2


def _sums(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, r: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ ∂y and Σ ∂y·x̂ of own rows, per channel."""
    rows, channels = x.shape[:2]
    if 1 < x.numel() // (rows * channels) < LANES and x.is_contiguous() and dy.is_contiguous():
        normal = torch.batch_norm(x, None, None, mean, variance, False, 0.0, eps, False)
        s1, s2 = (t.view(rows, -1).sum(0).view(channels, -1).sum(1) for t in (dy, normal.mul_(dy)))
        return s1, s2
    given = (dy, x, None, None, None, mean, torch.from_numpy(r), True, eps)
    _, s2, s1 = torch.ops.aten.native_batch_norm_backward(*given, (False, True, True))  # both in one pass
    return s1, s2


def _differentiable_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float, split: Split
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same gradients by operations that have gradients, and crossings."""
    dims = [d for d in range(x.dim()) if d != 1]
    x, dy = _wide(x), _wide(dy)
    counted = float(split.mine > 0)
    count = x.new_full((1,), counted * x.numel() / x.shape[1])
    sums = crossings.reduce_inside(torch.cat([x.sum(dims) * counted, count]), split.group)
    total = sums[-1].detach()
    centred = x - _along_channels(sums[:-1] / total, x)
    variance = crossings.reduce_inside((centred * centred).sum(dims) * counted, split.group) / total
    invstd = torch.rsqrt(variance + eps)
    normal = centred * _along_channels(invstd, x)
    db, dw = dy.sum(dims) * counted, (dy * normal).sum(dims) * counted
    m1, m2 = (crossings.reduce_inside(torch.cat([db, dw]), split.group) / total).chunk(2)
    scale = invstd if weight is None else invstd * weight.to(invstd.dtype)
    dx = _along_channels(scale, x) * (dy - _along_channels(m1, x) - normal * _along_channels(m2, x)) * counted
    return dx, dw, db


def _normalise(
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, weight: Any, bias: Any, eps: float
) -> torch.Tensor:
    """One pass of torch's kernel for evaluation, in the statistics' precision."""
    dtype = mean.dtype
    weight, bias = _in(weight, dtype), _in(bias, dtype)
    return torch.batch_norm(_in(x, dtype), weight, bias, mean, variance, False, 0.0, eps, False)


def _in(tensor: Any, dtype: torch.dtype) -> Any:
    return tensor if tensor is None or tensor.dtype is dtype else tensor.to(dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in HALVES and not x.is_cuda else x


def _along_channels(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *(1,) * (x.dim() - 2))
