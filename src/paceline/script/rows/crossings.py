"""The crossings between the whole batch and a worker's slice, and what each does to a gradient.

Above a sliced call every worker holds the same tensors ("whole"); inside it, each holds those of its slice ("local").
Gradients of local tensors are kept N times too large. Every parameter's gradient is averaged over the N workers, so the
average sums the gradients computed in slices and leaves those computed whole unchanged.

    crossing          forward                          backward
    cut     w → l     own rows                         gather the rows' gradients, ÷ N
    gather  l → w     all workers' rows side by side   own rows of the gradient, × N
    blend   l → w     Σ weight·value                   gradient × this worker's weight × N
    mean    l → w     Σ divisor·value ÷ Σ divisor      gradient × this worker's part of Σ divisor × N
    share   w → l     the same tensor                  average over the workers

Each backward is written with the other crossings, so that gradients of gradients work as well. The derivation is in
docs/gradients.md. Every worker calls each crossing, forward and backward, in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Function

from paceline.comm.group import Group

HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class Usage:
    """What a script does with a tensor of its loader's batches: see `inputs`."""

    batches: int = 0  # in which the tensor was handed out sharded
    computed: int = 0  # calls of models with rows that were computed of it
    gathered: int = 0  # times that these had to be gathered


@dataclass(frozen=True, slots=True)
class Split:
    """How the B rows of a batch are split: `sizes[r]` rows for worker r, in order."""

    group: Group
    sizes: tuple[int, ...]
    uneven: tuple[Split, ...] = ()  # of rows that differ in number from sample to sample: nodes, edges of graphs
    input: Usage | None = field(default=None, compare=False)  # of a loader's tensor, and all that is computed of it

    @classmethod
    def of(cls, group: Group, batch: int) -> Split:
        n = group.world
        return cls(group, tuple(batch * (r + 1) // n - batch * r // n for r in range(n)))

    def times(self, many: int) -> Split:
        """The same split for tensors with `many` rows per sample (batch × time)."""
        return self if many == 1 else Split(self.group, tuple(size * many for size in self.sizes))

    def rows_of(self, number: int) -> Split:
        """The split of the samples (0), or of their uneven rows of this number."""
        return self.uneven[number - 1] if number else self

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.group.rank])

    @property
    def mine(self) -> int:
        return self.sizes[self.group.rank]

    @property
    def batch(self) -> int:
        return sum(self.sizes)

    @property
    def share(self) -> float:
        """The fraction of the batch that this worker holds."""
        return self.mine / self.batch if self.batch else 0.0


def cut(whole: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
    """This worker's rows of a whole tensor. A worker without rows gets one borrowed row, whose gradient is dropped."""
    if whole.requires_grad and torch.is_grad_enabled():
        rows = _Cut.apply(whole, dim, split)
    else:
        rows = whole.narrow(dim, split.start, split.mine)
        if dim and whole.is_contiguous():  # as the model expects it: `view`, cuDNN
            rows = rows.contiguous()
    if split.mine or not split.batch:
        return rows
    # The empty piece stays in the graph: the other workers' backward gathers from this worker too.
    return torch.cat([rows, whole.detach().narrow(dim, 0, 1)], dim)


def gather(rows: torch.Tensor, dim: int, split: Split, order: Sequence[int] = ()) -> torch.Tensor:
    """All workers' rows, as one whole tensor, whose dimensions lie in memory in this order: see `memory_order`. A
    borrowed row is left out."""
    return shown_as(_Gather, rows).apply(rows.narrow(dim, 0, split.mine), dim, split, order)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost; empty if they lie in their own order. What a script draws for a
    tensor (dropout) is drawn in the order of its memory. A dimension of size 1 has its outer neighbour's stride."""
    if tensor.layout is not torch.strided:
        return ()
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d] > 1), reverse=True)
    return () if order == sorted(order) else tuple(order)


def laid_out(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The same numbers with the dimensions in this order of memory."""
    if len(order) != tensor.dim() or not order:
        return tensor
    return torch.empty_permuted(tensor.shape, tuple(order), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def blend(
    value: torch.Tensor, weight: float | torch.Tensor, group: Group, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The sum over workers of `weight · value`, of the value's dtype unless another is given; a worker with weight 0.0
    adds nothing, even if its value is NaN. Integers need the weight 1.0 or 0.0. Values of 16 bits are added up in 32,
    and rounded once."""
    return shown_as(_Blend, value).apply(value, weight, group, dtype)


def mean(value: torch.Tensor, divisor: torch.Tensor, group: Group) -> torch.Tensor:
    """The mean over all workers' targets, from each worker's mean and the number (or the weight) of its targets. One
    message. A worker without targets adds nothing, even if its value is NaN; without any target the mean is NaN."""
    return shown_as(_Mean, value).apply(value, divisor, group)


def share(whole: torch.Tensor, group: Group) -> torch.Tensor:
    """A whole tensor without a batch dimension, for use inside a sliced call."""
    if whole.requires_grad and torch.is_grad_enabled():
        return _Share.apply(whole, group)
    return whole


def average(local: torch.Tensor, group: Group) -> torch.Tensor:
    """A parameter's local gradient, averaged over the workers: equal to the gradient in one process. Of a DTensor,
    whose other parts are with workers outside this group, the own part is averaged."""
    if hasattr(local, "averaged"):  # of a pipeline's stage
        found: torch.Tensor = local.averaged(lambda part: average(part, group))
        return found
    if hasattr(local, "to_local"):
        dtensor: Any = local
        mean = _Average.apply(dtensor.to_local(), group)
        where: dict[str, Any] = {"shape": dtensor.shape, "stride": dtensor.stride()}
        whole: torch.Tensor = dtensor.from_local(mean, dtensor.device_mesh, dtensor.placements, **where)
        return whole
    return _Average.apply(local, group)


def reduce_inside(value: torch.Tensor, group: Group) -> torch.Tensor:
    """A sum over workers for use inside a sliced call (batch statistics): local input, local output."""
    return _ReduceInside.apply(value, group)


class _Cut(Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int, split: Split) -> torch.Tensor:
        ctx.dim, ctx.split = dim, split
        return whole.narrow(dim, split.start, split.mine).clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _Gather.apply(grad, ctx.dim, ctx.split) / ctx.split.group.world, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, dim: int, split: Split, order: Sequence[int] = ()) -> torch.Tensor:
        ctx.dim, ctx.split = dim, split
        whole = split.group.gather_rows(rows, dim, split.sizes, "the rows of a model's output")
        whole = laid_out(whole, order)
        if not rows.is_floating_point() and not rows.is_complex():
            ctx.mark_non_differentiable(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        ctx.split.group.crossed += 1
        return _Cut.apply(grad, ctx.dim, ctx.split) * ctx.split.group.world, None, None, None


class _Blend(Function):
    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, weight: float | torch.Tensor, group: Group, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        ctx.factor, ctx.group = weight * group.world, group
        if not value.dtype.is_floating_point and not value.is_complex():
            total = _sum_of_integers(value, weight, group)
            ctx.mark_non_differentiable(total)
            return total
        exact = value.float() if value.dtype in HALF else value
        total = torch.zeros_like(exact) if _is_zero(weight) else exact * weight
        group.all_reduce(total, "a model's returned value")
        return total.to(dtype or value.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        ctx.group.crossed += 1
        return share(grad, ctx.group) * ctx.factor, None, None, None


class _Mean(Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, divisor: torch.Tensor, group: Group) -> torch.Tensor:
        exact = torch.float64 if value.dtype is torch.float64 else torch.float32
        part = divisor.to(value.device, exact)
        sums = torch.stack([torch.where(part > 0, value.to(exact).reshape(()), 0) * part, part])
        group.all_reduce(sums, "a mean over the workers' targets")
        ctx.factor, ctx.group = (part / sums[1] * group.world).to(value.dtype), group
        return (sums[0] / sums[1]).to(value.dtype).reshape(value.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        ctx.group.crossed += 1
        return share(grad, ctx.group) * ctx.factor, None, None


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _Average.apply(grad, ctx.group), None


class _Average(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        mean = local.detach().clone(memory_format=torch.contiguous_format)
        group.all_reduce(mean, "the average of a gradient")
        return mean.div_(group.world)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        # mean = Σ local ÷ N, and a local gradient is kept N times too large: the factors cancel.
        return _Share.apply(grad, ctx.group), None


class _ReduceInside(Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        total = value.detach().clone(memory_format=torch.contiguous_format)
        group.all_reduce(total, "the statistics of batch norm")
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return _ReduceInside.apply(grad, ctx.group), None


def is_crossing(node: Any) -> bool:
    """Whether a node of a graph is one of these crossings."""
    return issubclass(getattr(type(node), "_forward_cls", type(None)), (_Cut, _Gather, _Blend, _Mean, _Share))


def is_inside_behind(node: Any, inside: bool) -> bool:
    """Whether what a graph has behind this node is computed in slices, given whether the node itself is."""
    crossing = getattr(type(node), "_forward_cls", type(None))
    return (inside or issubclass(crossing, (_Gather, _Blend, _Mean))) and not issubclass(crossing, (_Cut, _Share))


def shown_as(crossing: Any, value: torch.Tensor) -> Any:
    """The crossing under the name of the value's own gradient function: `print(loss)` shows that name."""
    return crossing if value.grad_fn is None else named(crossing, type(value.grad_fn).__name__)


@functools.cache
def named(crossing: Any, name: str) -> Any:
    """A Function whose gradient function has this name."""
    named = type(crossing)(name, (crossing,), {})
    named._backward_cls.__name__ = name
    return named


def _sum_of_integers(value: torch.Tensor, weight: float | torch.Tensor, group: Group) -> torch.Tensor:
    """The sum of all workers' integers or flags. Summed as int64: a float64 is not exact above 2^53. An overflow wraps
    around as in one process."""
    if isinstance(weight, torch.Tensor) or weight not in (0.0, 1.0):
        raise ValueError(f"A blend of {value.dtype} has the weight {weight}: integers can be added up only.")
    total = torch.zeros_like(value, dtype=torch.int64) if weight == 0.0 else value.to(torch.int64, copy=True)
    group.all_reduce(total, "a model's returned value")
    return total.to(value.dtype)


def _is_zero(weight: float | torch.Tensor) -> bool:
    return not isinstance(weight, torch.Tensor) and weight == 0.0
