"""Horovod's synchronous operations, with gradients.

The gradients are as Horovod defines them: that of allreduce is the same reduction of the gradients; those of allgather
and broadcast are averaged over the ranks, of which each takes what belongs to its own input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.process_sets import ProcessSet, global_process_set
from paceline.horovod.common.util import which_op
from paceline.horovod.engine.messages import AVERAGE, SUM
from paceline.horovod.torch import operations as start
from paceline.horovod.torch.compression import Compression
from paceline.horovod.torch.handles import synchronize

Average = AVERAGE


class HorovodAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, how: tuple[Any, ...]) -> Any:
        ctx.how = how
        return synchronize(start.allreduce_async(tensor, None, name, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return HorovodAllreduce.apply(grads[0].contiguous(), None, ctx.how), None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.how = how
        return synchronize(start.grouped_allreduce_async(tensors, None, name, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *HorovodGroupedAllreduce.apply(None, ctx.how, *(grad.contiguous() for grad in grads))


class HorovodAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        ctx.rows, ctx.process_set = (tensor.shape[0] if tensor.dim() else 0), process_set
        return synchronize(start.allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (own,) = _own_rows([grads[0]], [ctx.rows], ctx.process_set)
        return own, None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.rows, ctx.process_set = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors], process_set
        return synchronize(start.grouped_allgather_async(tensors, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *_own_rows(grads, ctx.rows, ctx.process_set)


def _own_rows(grads: Sequence[torch.Tensor], rows: Sequence[int], process_set: ProcessSet) -> list[torch.Tensor]:
    """This rank's rows of the gradients' averages."""
    how = Average, 1.0, 1.0, process_set
    averages = HorovodGroupedAllreduce.apply(None, how, *(grad.contiguous() for grad in grads))
    counts = torch.tensor([list(rows)], device="cpu")
    every = synchronize(start.allgather_async(counts, None, process_set))
    rank = process_set.rank() or 0
    starts = every[:rank].sum(0).tolist()
    return [whole.narrow(0, at, count) for whole, at, count in zip(averages, starts, rows, strict=True)]


class HorovodBroadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return synchronize(start.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        average = HorovodAllreduce.apply(grads[0].contiguous(), None, (Average, 1.0, 1.0, ctx.process_set))
        return (average if basics.rank() == ctx.root else average * 0), None, None, None


class HorovodAlltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(start.alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set, ctx.rows = received, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        back, _ = HorovodAlltoall.apply(grads[0].contiguous(), ctx.received.cpu(), None, ctx.process_set)
        if back.shape[0] < ctx.rows:  # rows that were sent to no rank
            back = torch.cat([back, back.new_zeros((ctx.rows - back.shape[0], *back.shape[1:]))])
        return back, None, None, None


class HorovodReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, how: tuple[Any, ...]) -> Any:
        ctx.how = how
        return synchronize(start.reducescatter_async(tensor, name, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad = grads[0] * _factor(ctx.how)
        return HorovodAllgather.apply(grad.contiguous(), None, ctx.how[1]), None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.how = how
        return synchronize(start.grouped_reducescatter_async(tensors, name, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        scaled = [(grad * _factor(ctx.how)).contiguous() for grad in grads]
        return None, None, *HorovodGroupedAllgather.apply(None, ctx.how[1], *scaled)


def _factor(how: tuple[Any, ...]) -> float:
    """Of the gradient of a reducescatter, which Horovod defines as if the op were Average."""
    op, process_set, prescale, postscale = how
    return float((process_set.size() if op == SUM else 1) * prescale * postscale)


# -- the functions that scripts call -------------------------------------------------------------------------------


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over the ranks; its shape and dtype are the same on all. `op` is Average if not given."""
    how = which_op(op, average), prescale_factor, postscale_factor, process_set
    small, context = compression.compress(tensor)
    result: torch.Tensor = compression.decompress(HorovodAllreduce.apply(small, name, how), context)
    return result


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like allreduce, in place and without gradients."""
    handle = start.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = synchronize(handle)
    return result


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors at once."""
    how = which_op(op, average), prescale_factor, postscale_factor, process_set
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    results = HorovodGroupedAllreduce.apply(name, how, *small)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Like grouped_allreduce, in place and without gradients."""
    handle = start.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return synchronize(handle)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, whose size may differ between ranks."""
    result: torch.Tensor = HorovodAllgather.apply(tensor, name, process_set)
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gathers several tensors at once."""
    return HorovodGroupedAllgather.apply(name, process_set, *tensors)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor, on all ranks."""
    result: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Like broadcast, in place and without gradients."""
    result: torch.Tensor = synchronize(start.broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to rank r, and concatenates the rows that come from all ranks. With `splits`, also returns
    how many rows came from each rank."""
    output, received = HorovodAlltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over the ranks, and gives each rank its part of the first dimension."""
    how = op, process_set, prescale_factor, postscale_factor
    small, context = compression.compress(tensor)
    result: torch.Tensor = compression.decompress(HorovodReducescatter.apply(small, name, how), context)
    return result


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Like reducescatter, of several tensors at once."""
    how = op, process_set, prescale_factor, postscale_factor
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    results = HorovodGroupedReducescatter.apply(name, how, *small)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]
