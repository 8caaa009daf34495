"""The crossings between plain tensors, which all workers of the axis model hold, and parts of tensors.

    crossing   forward                                   backward
    own_use    the same tensor, for a local computation  sum over the axis
    summed     sum over the axis of local results        the same gradient, for a local computation
    own_part   this worker's part                        gather the parts
    gathered   all parts side by side                    this worker's part

Each backward is written with the other crossings, so that gradients of gradients work as well. DTensor's own crossings
(`from_local`, `redistribute`) have no gradient of their gradient. The gradient of a plain tensor is always whole.

Every worker of the axis calls each crossing, forward and backward, in the same order. If a peer is gone, it raises.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from paceline.comm.group import Group

WHAT = "a part of a layer"
_groups: dict[DeviceMesh, Group] = {}


def connect(mesh: DeviceMesh, group: Group) -> None:
    """This group carries what goes along the mesh of the axis model."""
    _groups[mesh] = group


def own_use(plain: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return _OwnUse.apply(plain, mesh) if plain.requires_grad and torch.is_grad_enabled() else plain


def summed(local: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return _Summed.apply(local, mesh)


def own_part(plain: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
    return _OwnPart.apply(plain, dim % plain.dim(), mesh)


def gathered(local: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
    return _Gathered.apply(local, dim % local.dim(), mesh)


# -- DTensors ----------------------------------------------------------------------------------------------------------


def local_of(dtensor: DTensor) -> torch.Tensor:
    """This worker's part, with its graph."""
    if dtensor.requires_grad and torch.is_grad_enabled():
        found: torch.Tensor = _ToLocal.apply(dtensor)
        return found
    with torch.no_grad():
        part: torch.Tensor = dtensor.to_local()
    return part


def laid(local: torch.Tensor, dim: int, mesh: DeviceMesh) -> DTensor:
    """The DTensor of which each worker has computed one of equal parts along `dim`."""
    return placed(local, mesh, Shard(dim % local.dim()))


def everywhere(plain: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """A plain tensor as a DTensor, for a function of DTensors."""
    return placed(plain, mesh, Replicate())


def placed(local: torch.Tensor, mesh: DeviceMesh, placement: Placement, size: Any = None) -> DTensor:
    """The DTensor with this part. `size`: shape and stride of the whole, if they do not follow from the part."""
    found: DTensor = _FromLocal.apply(local, mesh, placement, size)
    return found


def whole_of(dtensor: DTensor) -> torch.Tensor:
    """The whole tensor, plain."""
    placement, mesh = dtensor.placements[0], dtensor.device_mesh
    if isinstance(placement, Shard):
        return gathered(local_of(dtensor), placement.dim, mesh)
    if isinstance(placement, Replicate):
        return local_of(dtensor)
    if type(placement) is Partial and placement.reduce_op == "sum":
        return summed(local_of(dtensor), mesh)
    full: torch.Tensor = dtensor.full_tensor()  # of norms, which are computed without a gradient
    return full


def relaid(dtensor: DTensor, placement: Placement) -> DTensor:
    """The same tensor, split otherwise."""
    if dtensor.placements[0] == placement:
        return dtensor
    plain, mesh = whole_of(dtensor), dtensor.device_mesh
    part = own_part(plain, placement.dim, mesh) if isinstance(placement, Shard) else plain
    return placed(part, mesh, placement, (dtensor.shape, dtensor.stride()))


class _OwnUse(Function):
    @staticmethod
    def forward(ctx: Any, plain: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        return plain.view_as(plain)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return summed(grad, ctx.mesh), None


class _Summed(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        total = local.detach().clone(memory_format=torch.contiguous_format)
        _groups[mesh].all_reduce(total, WHAT)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_use(grad, ctx.mesh), None


class _OwnPart(Function):
    @staticmethod
    def forward(ctx: Any, plain: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
        ctx.dim, ctx.mesh = dim, mesh
        size = plain.shape[dim] // mesh.size()
        return plain.narrow(dim, mesh.get_local_rank() * size, size).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, ctx.dim, ctx.mesh), None, None


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
        ctx.dim, ctx.mesh = dim, mesh
        sizes = (local.shape[dim],) * mesh.size()
        whole = _groups[mesh].gather_rows(local.detach(), dim, sizes, WHAT)
        if not (local.is_floating_point() or local.is_complex()):
            ctx.mark_non_differentiable(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_part(grad, ctx.dim, ctx.mesh), None, None


class _ToLocal(Function):
    @staticmethod
    def forward(ctx: Any, dtensor: DTensor) -> torch.Tensor:
        placement = dtensor.placements[0]
        # The gradient of each summand is that of the sum.
        ctx.placement = placement if isinstance(placement, (Shard, Replicate)) else Replicate()
        ctx.mesh, ctx.size = dtensor.device_mesh, (dtensor.shape, dtensor.stride())
        part = dtensor.to_local()
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return placed(grad, ctx.mesh, ctx.placement, ctx.size)


class _FromLocal(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, mesh: DeviceMesh, placement: Placement, size: Any) -> DTensor:
        ctx.placement = placement
        shape, stride = size or (None, None)
        return DTensor.from_local(local.detach(), mesh, [placement], run_check=False, shape=shape, stride=stride)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return local_of(relaid(grad, ctx.placement)), None, None, None
