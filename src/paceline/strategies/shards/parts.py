"""A worker's part of a sharded tensor, the whole tensor, and the ways between them.

Sharded tensors are DTensors on one mesh, of the workers that hold their parts: a parameter, its gradient, the tensors
of an optimizer's state. Every worker calls `whole_of` in the same order; it waits for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Replicate, Shard

from paceline.comm.group import Group
from paceline.script.rows import crossings
from paceline.torch_private import no_torch_function


def local_of(tensor: DTensor) -> torch.Tensor:
    """This worker's part, without a graph: the memory itself."""
    return tensor._local_tensor


def dim_of(tensor: DTensor) -> int | None:
    """The dimension along which the tensor is cut; None if it is not."""
    (placement,) = tensor.placements
    return placement.dim if isinstance(placement, Shard) else None


def sizes_of(length: int, world: int) -> list[int]:
    """How many rows each worker holds, in the order of ranks: as torch.chunk cuts."""
    most = -(-length // world)
    return [max(0, min(most, length - rank * most)) for rank in range(world)]


def own_part(whole: torch.Tensor, like: DTensor, group: Group) -> torch.Tensor:
    """This worker's part of a whole tensor that is cut as `like` is. A view."""
    dim = dim_of(like)
    if dim is None:
        return whole
    sizes = sizes_of(whole.shape[dim], group.world)
    return whole.narrow(dim, sum(sizes[: group.rank]), sizes[group.rank])


def sharded(local: torch.Tensor, like: DTensor) -> DTensor:
    """This worker's part as a tensor of the whole shape that is cut as `like` is. Without a graph."""
    with no_torch_function(), torch.no_grad():
        return DTensor.from_local(
            local.detach(), like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )


def cut(whole: torch.Tensor, like: DTensor, group: Group) -> DTensor:
    """A copy of this worker's part of a whole tensor, cut as `like` is."""
    return sharded(own_part(whole.detach(), like, group).clone(memory_format=torch.contiguous_format), like)


def whole_of(tensor: DTensor, group: Group, rows: Group | None = None) -> torch.Tensor:
    """The whole tensor, as a plain one. `rows`: it is used in a sliced call of these workers, where each computes a
    part of its gradient; outside, every worker computes all of it."""
    with no_torch_function():
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Whole.apply(tensor, group, rows)
        return _put_together(tensor, group)


def as_local(tensor: DTensor) -> torch.Tensor:
    """This worker's part, with a graph if the tensor has one."""
    with no_torch_function():
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Local.apply(tensor)
        return local_of(tensor).detach()


def as_shard(local: torch.Tensor, like: DTensor) -> DTensor:
    """This worker's part of a result as a tensor of the whole shape, with a graph if the part has one."""
    with no_torch_function():
        if local.requires_grad and torch.is_grad_enabled():
            return _Shard.apply(local, like)
        return sharded(local, like)


def sum_of_parts(value: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over the workers. Every worker uses all of it, so a part's gradient is the sum's."""
    return _Sum.apply(value, group)


def _put_together(tensor: DTensor, group: Group) -> torch.Tensor:
    (placement,) = tensor.placements
    if isinstance(placement, Shard):  # as FSDP2 and the functions here make them
        sizes = sizes_of(tensor.shape[placement.dim], group.world)
        rows = local_of(tensor).detach()
        whole = group.gather_rows(rows, placement.dim, sizes, "a sharded tensor")
        return whole.clone() if whole is rows or group.world == 1 else whole
    value: Any = tensor.detach()
    return local_of(value.redistribute(placements=[Replicate()])).clone()


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: DTensor, group: Group, rows: Group | None) -> torch.Tensor:
        ctx.like, ctx.group, ctx.rows = tensor.detach(), group, rows
        return _put_together(tensor, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        like: DTensor = ctx.like
        with no_torch_function():
            if ctx.rows is not None:
                grad = crossings.average(grad, ctx.rows)
            if dim_of(like) is not None:
                return cut(grad, like, ctx.group), None, None
            return DTensor.from_local(grad, like.device_mesh, [Replicate()], run_check=False), None, None


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> torch.Tensor:
        ctx.like = tensor.detach()
        return local_of(tensor).detach().view_as(local_of(tensor))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return sharded(grad.contiguous(), ctx.like)


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, like: DTensor) -> DTensor:
        return sharded(local, like)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        return local_of(grad), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Group) -> torch.Tensor:
        total = value.detach().clone()
        group.all_reduce(total, "a sum over shards")
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None
