"""Losses over classes of which each worker of the axis model has a part: logits that a split vocabulary gives.

The logits are never gathered. Each worker exchanges, for each row, the largest of its own logits, the sum of their
exponentials, and the logit of the target if it is its own:

    log_softmax            stays split
    nll_loss               the target's log-probability is with one worker: the others add zero
    cross_entropy          both; label smoothing adds one more sum, probabilities as targets need only sums
    argmax                 own largest logit and its number, compared between the workers

Functions return NotImplemented where the classes are not the split dimension, and in half precision, whose roundings
torch makes in the middle of its kernels; under autocast on a GPU losses are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from paceline.script.rows.crossings import HALF, named
from paceline.spread.dtensors import group_of, is_sharded, laid, local_of, own_part, own_use, shard_dim, summed
from paceline.strategies.mesh.shown_names import name_of
from paceline.torch_private import nn_bindings

WHAT = "the logits of a split vocabulary"
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def log_softmax(x: Any, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    if not isinstance(x, DTensor) or dim is None or shard_dim(x) != dim % x.dim():
        return NotImplemented
    if dtype is not None:
        x = x.to(dtype)
    return NotImplemented if (wide := _wide(x)) is None else _log_softmax(wide)


def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    if (size_average, reduce) != (None, None) or not _fits(input, target, weight, reduction):
        return NotImplemented
    if target.is_floating_point() or (input := _wide(input)) is None:
        return NotImplemented
    found = _of_targets(input, target, weight, ignore_index, reduction, 0.0)
    return _shown(found, _name(input.dim(), reduction, weight is not None, "nll", 0.0))


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if (size_average, reduce) != (None, None) or not _fits(input, target, weight, reduction):
        return NotImplemented
    if (input := _wide(input)) is None:
        return NotImplemented
    logs = _log_softmax(input)
    if target.is_floating_point():
        found = _of_probabilities(logs, target, weight, reduction, label_smoothing)
    else:
        found = _of_targets(logs, target, weight, ignore_index, reduction, label_smoothing)
    kind = "probabilities" if target.is_floating_point() else "classes"
    return _shown(found, _name(input.dim(), reduction, weight is not None, kind, float(label_smoothing)))


@torch.no_grad()
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The first of the largest, as on one device."""
    if not isinstance(x, DTensor) or dim is None or shard_dim(x) != dim % x.dim():
        return NotImplemented
    local, mesh, dim = local_of(x), x.device_mesh, dim % x.dim()
    value, number = local.max(dim, keepdim=keepdim)
    number = number + mesh.get_local_rank() * local.shape[dim]
    values, numbers = (_of_all(found, mesh) for found in (value, number))
    return numbers.gather(0, values.argmax(0, keepdim=True)).squeeze(0)


# -- parts -------------------------------------------------------------------------------------------------------------


def _class_dim(x: Any) -> int:
    return min(1, x.dim() - 1)


def _fits(x: Any, target: Any, weight: Any, reduction: str) -> bool:
    """Whether the split dimension is that of the classes, and the shapes are torch's."""
    if not isinstance(x, DTensor) or not x.dim() or shard_dim(x) != _class_dim(x) or reduction not in REDUCTIONS:
        return False
    if not isinstance(target, torch.Tensor) or is_sharded(target) or (weight is not None and is_sharded(weight)):
        return False
    rows = [size for dim, size in enumerate(x.shape) if dim != _class_dim(x)]
    if weight is not None and (weight.requires_grad or weight.shape != (x.shape[_class_dim(x)],)):
        return False
    return list(target.shape) == (list(x.shape) if target.is_floating_point() else rows) and target.device == x.device


def _wide(x: DTensor) -> DTensor | None:
    """The logits in the type in which the loss is computed; None if torch rounds in between."""
    if x.dtype not in HALF:
        return x
    wide: Any = x.float() if x.is_cuda and torch.is_autocast_enabled("cuda") else None
    return wide


def _log_softmax(x: DTensor) -> DTensor:
    dim = shard_dim(x)
    assert dim is not None
    return laid(named(_LogSoftmax, "LogSoftmaxBackward0").apply(local_of(x), dim, x.device_mesh), dim, x.device_mesh)


def _of_targets(
    logs: DTensor, target: torch.Tensor, weight: Any, ignore: int, reduction: str, smoothing: float
) -> torch.Tensor:
    """The loss of class numbers, as torch's nll_loss and its label smoothing define it."""
    mesh, dim, classes = logs.device_mesh, _class_dim(logs), logs.shape[_class_dim(logs)]
    counts = target != ignore
    _refuse_outside(target, counts, classes)
    local = local_of(logs).movedim(dim, -1)
    own = target - mesh.get_local_rank() * local.shape[-1]
    mine = counts & (own >= 0) & (own < local.shape[-1])
    picked = local.gather(-1, torch.where(mine, own, 0).unsqueeze(-1)).squeeze(-1)
    sums = [torch.where(mine, picked, 0.0)]
    if smoothing:
        weighted = local if weight is None else local * own_part(weight, 0, mesh)
        sums.append(torch.where(counts, weighted.sum(-1), 0.0))
    found = summed(torch.stack(sums), mesh)
    if weight is None:
        amounts = counts.to(local.dtype)
    else:
        amounts = torch.where(counts, weight[torch.where(counts, target, 0)], 0.0)
    loss = -found[0] * amounts
    if smoothing:
        loss = (1 - smoothing) * loss - smoothing / classes * found[1]
    if reduction == "none":
        return loss
    return loss.sum() / amounts.sum() if reduction == "mean" else loss.sum()


def _of_probabilities(
    logs: DTensor, target: torch.Tensor, weight: Any, reduction: str, smoothing: float
) -> torch.Tensor:
    """The loss of one probability for each class."""
    mesh, dim = logs.device_mesh, _class_dim(logs)
    aim = own_part(target, dim, mesh).movedim(dim, -1)
    if smoothing:
        aim = aim * (1 - smoothing) + smoothing / logs.shape[dim]
    terms = local_of(logs).movedim(dim, -1) * aim
    loss = -summed((terms if weight is None else terms * own_part(weight, 0, mesh)).sum(-1), mesh)
    if reduction == "none":
        return loss
    return loss.sum() / loss.numel() if reduction == "mean" else loss.sum()


def _refuse_outside(target: torch.Tensor, counts: torch.Tensor, classes: int) -> None:
    """As torch, which looks on the host only."""
    if target.device.type == "cpu":
        wrong = target[counts & ((target < 0) | (target >= classes))]
        if wrong.numel():
            raise IndexError(f"Target {int(wrong[0])} is out of bounds.")


def _of_all(value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """One value of each worker, side by side."""
    return group_of(mesh).gather_rows(value.detach().unsqueeze(0), 0, (1,) * mesh.size(), WHAT)


class _LogSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
        most = _of_all(local.amax(dim, keepdim=True), mesh).amax(0)
        found = local - most
        total = found.exp().sum(dim, keepdim=True)
        group_of(mesh).all_reduce(total, WHAT)
        found.sub_(total.log_())
        ctx.save_for_backward(found)
        ctx.dim, ctx.mesh = dim, mesh
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (found,) = ctx.saved_tensors
        total = own_use(summed(grad.sum(ctx.dim, keepdim=True), ctx.mesh), ctx.mesh)
        return grad - found.exp() * total, None, None


# -- names -------------------------------------------------------------------------------------------------------------


class _Same(Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def _shown(value: torch.Tensor, name: str) -> torch.Tensor:
    """The same value; `print` shows the name that torch's own function would have."""
    found: torch.Tensor = value if value.grad_fn is None else named(_Same, name).apply(value)
    return found


@cache
def _name(dims: int, reduction: str, weighted: bool, kind: str, smoothing: float) -> str:
    def probe() -> torch.Tensor:
        x = torch.zeros((1,) * dims, device="cpu", requires_grad=True)
        weight = torch.ones(1, device="cpu") if weighted else None
        classes = torch.zeros((1,) * (dims - 1), dtype=torch.long, device="cpu")
        target = x.detach() if kind == "probabilities" else classes
        found: torch.Tensor = (
            nn_bindings.nll_loss_nd(x, target, weight, REDUCTIONS[reduction], -100)
            if kind == "nll"
            else nn_bindings.cross_entropy_loss(x, target, weight, REDUCTIONS[reduction], -100, smoothing)
        )
        return found

    return name_of(probe)


KNOWN: dict[Any, Callable[..., Any]] = {
    F.log_softmax: log_softmax,
    torch.log_softmax: lambda input, dim, dtype=None: log_softmax(input, dim, dtype=dtype),
    torch.Tensor.log_softmax: lambda input, dim, dtype=None: log_softmax(input, dim, dtype=dtype),
    F.nll_loss: nll_loss,
    F.cross_entropy: cross_entropy,
    torch.argmax: argmax,
    torch.Tensor.argmax: argmax,
}
