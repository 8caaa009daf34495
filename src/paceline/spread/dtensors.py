"""DTensors along the axes of a mesh, and the crossings between plain tensors, which all of its workers hold, and parts.

    crossing   forward                                   backward
    own_use    the same tensor, for a local computation  sum over the axis
    summed     sum over the axis of local results        the same gradient, for a local computation
    scattered  this worker's part of that sum            gather the parts, for a local computation
    own_part   this worker's part                        gather the parts
    gathered   all parts side by side                    this worker's part

Each backward is written with the other crossings, so that gradients of gradients work as well. DTensor's own crossings
(`from_local`, `redistribute`) have no gradient of their gradient. The gradient of a plain tensor is always whole.

Sums of half precision are made in float32, and rounded once. A crossing is shown (`print(output)`) under the name of
the function that made the value, or under the given `name`.

A crossing goes along one axis. A tensor that lies on several axes is split along one after the other, the last axis of
its mesh first, as FSDP2 splits a part of a layer: what is done to it is done axis by axis (`cuts_of`).

A tensor is split as torch.chunk splits: the last parts may be smaller, or empty. Every worker of the axis calls each
crossing, forward and backward, in the same order. If a peer is gone, it raises.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script.rows.crossings import HALF, named, shown_as
from paceline.torch_private import no_torch_function

WHAT = "parts of a tensor"
_groups: dict[DeviceMesh, tuple[Group, int]] = {}  # of the mesh of one axis; and the process that is connected
_axes: dict[DeviceMesh, tuple[DeviceMesh, ...]] = {}  # the axes of a mesh of several

Placements = tuple[Placement, ...]


class Cut(NamedTuple):
    """A tensor of this length along a dimension is split over the workers of an axis."""

    dim: int
    axis: DeviceMesh
    length: int


def connect(mesh: DeviceMesh, *groups: Group) -> None:
    """These groups carry what goes along the axes of a mesh, one for each."""
    axes = (mesh,) if mesh.ndim == 1 else tuple(mesh[name] for name in mesh.mesh_dim_names or ())
    _axes[mesh] = axes
    for axis, group in zip(axes, groups, strict=True):
        _groups[axis] = group, os.getpid()


def own_use(plain: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return _OwnUse.apply(plain, mesh) if plain.requires_grad and torch.is_grad_enabled() else plain


def summed(
    local: torch.Tensor,
    mesh: DeviceMesh,
    *,
    plus: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    name: str = "",
) -> torch.Tensor:
    """`plus`: a plain tensor that is added once, before the sum is rounded to `dtype`."""
    return (named(_Summed, name) if name else shown_as(_Summed, local)).apply(local, plus, mesh, dtype or local.dtype)


def scattered(
    local: torch.Tensor,
    dim: int,
    mesh: DeviceMesh,
    *,
    plus: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """As `summed`, of which each worker keeps its part along `dim`."""
    total = summed(local, mesh, plus=plus, dtype=dtype)
    found: torch.Tensor = shown_as(_OwnPart, total).apply(total, dim % local.dim(), mesh)
    return found


def linear_of_parts(
    local: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, mesh: DeviceMesh
) -> torch.Tensor:
    """A linear layer of the whole tensor, of which each worker has a part: for a local computation. Only the part is
    kept for the backward, which gathers it again. No gradients of gradients."""
    found: torch.Tensor = _LinearOfParts.apply(local, weight, bias, dim % local.dim(), mesh)
    return found


def own_part(plain: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
    return _OwnPart.apply(plain, dim % plain.dim(), mesh)


def gathered(local: torch.Tensor, dim: int, mesh: DeviceMesh, length: int = 0) -> torch.Tensor:
    """`length` of the whole tensor; without it all parts are alike."""
    dim %= local.dim()
    return shown_as(_Gathered, local).apply(local, dim, mesh, length or local.shape[dim] * mesh.size())


def own(whole: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
    """This worker's part of a whole tensor: a view."""
    sizes, rank = _sizes_of(whole.shape[dim], mesh), mesh.get_local_rank()
    return whole.narrow(dim, sum(sizes[:rank]), sizes[rank])


def _sizes_of(length: int, mesh: DeviceMesh) -> list[int]:
    most = -(-length // mesh.size())
    return [max(0, min(most, length - rank * most)) for rank in range(mesh.size())]


def group_of(mesh: DeviceMesh) -> Group:
    """What carries messages along the axis."""
    group, process = _groups[mesh]
    if os.getpid() != process:
        raise ScriptError(
            "A child process of the script (a DataLoader's process) uses a model that the strategy has split over the "
            "workers: the other workers do not take part.",
            advice="Load in the script's own process (num_workers=0), or use --strategy mirrored.",
        )
    return group


# -- DTensors ----------------------------------------------------------------------------------------------------------


def local_of(dtensor: DTensor) -> torch.Tensor:
    """This worker's part, with its graph."""
    if dtensor.requires_grad and torch.is_grad_enabled():
        found: torch.Tensor = shown_as(_ToLocal, dtensor).apply(dtensor)
        return found
    return part_of(dtensor)


def dtensor_of(value: Any) -> DTensor:
    """The DTensor of a parameter that is still the script's object (`mesh.sharded_parameter`); a DTensor as it is."""
    found: DTensor = getattr(value, "shard", value)
    return found


def is_sharded(value: Any) -> bool:
    return isinstance(dtensor_of(value), DTensor)


def part_of(value: Any) -> torch.Tensor:
    """This worker's part, without a graph: the memory itself."""
    return dtensor_of(value)._local_tensor


def shard_dim(value: Any) -> int | None:
    """The dimension along which a tensor of a mesh of one axis is split; None if it is not."""
    placement = dtensor_of(value).placements[0]
    return placement.dim if isinstance(placement, Shard) else None


def cuts_of(value: Any) -> list[Cut]:
    """How a tensor is split, one axis after the other."""
    with no_torch_function():
        shard = dtensor_of(value)
        return _cuts(shard.device_mesh, shard.placements, shard.shape)


def _cuts(mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> list[Cut]:
    sizes, cuts = list(shape), list[Cut]()
    for axis, placement in reversed(list(zip(axes_of(mesh), placements, strict=True))):
        dim = getattr(placement, "dim", None)  # also of FSDP2's strided ones, which are no Shard
        if dim is not None:
            cuts.append(Cut(dim, axis, sizes[dim]))
            sizes[dim] = _sizes_of(sizes[dim], axis)[axis.get_local_rank()]
    return cuts


def axes_of(mesh: DeviceMesh) -> tuple[DeviceMesh, ...]:
    """The meshes of its axes."""
    return (mesh,) if mesh.ndim == 1 else _axes[mesh]


def is_laid_like(value: Any, other: Any) -> bool:
    """Whether two sharded tensors are split in the same way."""
    one, two = dtensor_of(value), dtensor_of(other)
    return bool(one.placements == two.placements and one.device_mesh == two.device_mesh)


def like(local: torch.Tensor, value: Any) -> DTensor:
    """A DTensor with this part, split as the other one is."""
    with no_torch_function():
        shard = dtensor_of(value)
        return placed(local, shard.device_mesh, shard.placements, (shard.shape, shard.stride()))


def split(plain: torch.Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
    """This worker's part of a tensor that all workers hold. The part has its own memory."""
    full = part = plain.detach().contiguous()
    for dim, axis, _ in _cuts(mesh, placements, full.shape):
        part = own(part, dim, axis)
    return placed(part.clone(memory_format=torch.contiguous_format), mesh, placements, (full.shape, full.stride()))


@torch.no_grad()
def split_like(plain: torch.Tensor, value: Any) -> DTensor:
    """The same, split as the other one is."""
    shard = dtensor_of(value)
    return split(plain.to(part_of(value).device), shard.device_mesh, shard.placements)


def part_like(plain: torch.Tensor, value: Any) -> torch.Tensor:
    """What a part of a tensor that is split as the other one is needs of a plain operand, with broadcasting: a view, if
    it is on the same device."""
    cuts = cuts_of(value)
    if not cuts or not plain.dim():
        return plain
    plain = plain.to(part_of(value).device)
    with no_torch_function():
        for dim, axis, length in cuts:
            at = dim - dtensor_of(value).dim() + plain.dim()
            plain = own(plain, at, axis) if at >= 0 and plain.shape[at] == length else plain
        return plain


def laid(local: torch.Tensor, dim: int, mesh: DeviceMesh) -> DTensor:
    """The DTensor of which each worker has computed one of equal parts along `dim`."""
    return placed(local, mesh, (Shard(dim % local.dim()),))


def everywhere(plain: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """A plain tensor as a DTensor, for a function of DTensors."""
    return placed(plain, mesh, (Replicate(),) * mesh.ndim)


def placed(local: torch.Tensor, mesh: DeviceMesh, placements: Placements, size: Any = None) -> DTensor:
    """The DTensor with this part. `size`: shape and stride of the whole, if they do not follow from the part."""
    found: DTensor = shown_as(_FromLocal, local).apply(local, mesh, placements, size)
    return found


def whole_of(dtensor: DTensor) -> torch.Tensor:
    """The whole tensor, plain."""
    if any(placement.is_partial() for placement in dtensor.placements):  # along one axis: nothing else makes them
        placement = dtensor.placements[0]
        if type(placement) is Partial and placement.reduce_op == "sum":
            return summed(local_of(dtensor), dtensor.device_mesh)
        full: torch.Tensor = dtensor.full_tensor()  # of norms, which are computed without a gradient
        return full
    with no_torch_function():
        whole = local_of(dtensor)
        for dim, axis, length in reversed(cuts_of(dtensor)):
            whole = gathered(whole, dim, axis, length)
        return whole


def relaid(dtensor: DTensor, placements: Placements) -> DTensor:
    """The same tensor, split otherwise."""
    if dtensor.placements == placements:
        return dtensor
    size = dtensor.shape, dtensor.stride()
    return placed(_own_parts(whole_of(dtensor), dtensor.device_mesh, placements), dtensor.device_mesh, placements, size)


def _own_parts(plain: torch.Tensor, mesh: DeviceMesh, placements: Placements) -> torch.Tensor:
    for dim, axis, _ in _cuts(mesh, placements, plain.shape):
        plain = own_part(plain, dim, axis)
    return plain


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
    def forward(
        ctx: Any, local: torch.Tensor, plus: torch.Tensor | None, mesh: DeviceMesh, dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.mesh, ctx.dtype = mesh, local.dtype
        ctx.shape = None if plus is None else plus.shape
        ctx.plus_dtype = None if plus is None else plus.dtype
        total = local.detach().clone(memory_format=torch.contiguous_format)
        total = total.float() if total.dtype in HALF else total
        group_of(mesh).all_reduce(total, WHAT)
        return (total if plus is None else total.add_(plus)).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        plus = None if ctx.shape is None else grad.sum_to_size(ctx.shape).to(ctx.plus_dtype)
        return own_use(grad, ctx.mesh).to(ctx.dtype), plus, None, None


class _LinearOfParts(Function):
    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, mesh: DeviceMesh
    ) -> torch.Tensor:
        ctx.dim, ctx.mesh, ctx.has_bias = dim, mesh, bias is not None
        ctx.save_for_backward(local, weight)
        return F.linear(_put_together(local, dim, mesh), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        local, weight = ctx.saved_tensors
        whole = _put_together(local, ctx.dim, ctx.mesh)
        of_weight = grad.flatten(0, -2).t() @ whole.flatten(0, -2)
        of_input = grad @ weight
        group_of(ctx.mesh).all_reduce(of_input, WHAT)
        size = local.shape[ctx.dim]
        own = of_input.narrow(ctx.dim, ctx.mesh.get_local_rank() * size, size).clone()
        return own, of_weight, grad.flatten(0, -2).sum(0) if ctx.has_bias else None, None, None


def _put_together(local: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
    return group_of(mesh).gather_rows(local.detach(), dim, (local.shape[dim],) * mesh.size(), WHAT)


class _OwnPart(Function):
    @staticmethod
    def forward(ctx: Any, plain: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
        ctx.dim, ctx.mesh = dim, mesh
        ctx.length = plain.shape[dim]
        return own(plain, dim, mesh).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, ctx.dim, ctx.mesh, ctx.length), None, None


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, dim: int, mesh: DeviceMesh, length: int) -> torch.Tensor:
        ctx.dim, ctx.mesh = dim, mesh
        whole = group_of(mesh).gather_rows(local.detach(), dim, _sizes_of(length, mesh), WHAT)
        whole = whole.clone() if mesh.size() == 1 else whole
        if not (local.is_floating_point() or local.is_complex()):
            ctx.mark_non_differentiable(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_part(grad, ctx.dim, ctx.mesh), None, None, None


class _ToLocal(Function):
    @staticmethod
    def forward(ctx: Any, dtensor: DTensor) -> torch.Tensor:
        # The gradient of each summand is that of the sum.
        ctx.placements = tuple(Replicate() if one.is_partial() else one for one in dtensor.placements)
        with no_torch_function():
            ctx.mesh, ctx.size, ctx.is_leaf = dtensor.device_mesh, (dtensor.shape, dtensor.stride()), dtensor.is_leaf
        return part_of(dtensor).detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.contiguous() if ctx.is_leaf else grad  # what a parameter's gradient becomes
        return placed(grad, ctx.mesh, ctx.placements, ctx.size)


class _FromLocal(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, mesh: DeviceMesh, placements: Placements, size: Any) -> DTensor:
        ctx.placements, ctx.mesh = placements, mesh
        shape, stride = size or (None, None)
        return DTensor.from_local(local.detach(), mesh, placements, run_check=False, shape=shape, stride=stride)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if isinstance(grad, DTensor):
            return local_of(relaid(grad, ctx.placements)), None, None, None
        # A hook of the script has made a whole one of it.
        return _own_parts(grad, ctx.mesh, ctx.placements), None, None, None
