"""A parameter whose memory is this worker's shard, and that behaves as the whole tensor.

The parameter stays the object that the script knows: lists of parameters, optimizers and tied modules keep referring
to it. Its numbers are in `shard`, a DTensor over the model axis. Functions that meet a `ShardedParameter`, or a DTensor
that was computed from it, go through `functions.answer`: some compute on shards, all others get the whole tensor.

Gradients are DTensors that are split like the parameter. Every worker runs the same script, so that a gather never
waits for a worker that does not come. If a peer is gone, the gather raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from paceline.script import tree
from paceline.script.rows.spread_tensor import become
from paceline.spread.dtensors import is_sharded, like, own_use, relaid, split, whole_of
from paceline.strategies.mesh.fused_heads import THIRDS, FusedHeads
from paceline.torch_private import OwnTensor, make_wrapper_subclass

Answer = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


class ShardedParameter(OwnTensor):
    """`shard` holds this worker's part, without a graph. `answer` is set by `functions`. A tensor of an optimizer's
    state that was loaded whole becomes one, too: the script may hold it under another name."""

    shard: DTensor
    answer: Answer
    _is_param: bool  # isinstance(…, nn.Parameter)

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ShardedParameter.answer(f, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, f: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached only by code that calls torch from C++: on the shards, as DTensor computes it."""
        given, named = tree.replace((args, kwargs or {}), _shard_of)
        return f(*given, **named)

    @property
    def local(self) -> torch.Tensor:
        """What all workers that share rows hold: the shard, without a graph."""
        return self.shard.to_local()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A plain parameter: a copy of the model is split when it is called itself."""
        if id(self) not in memo:
            memo[id(self)] = self._plain()
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self._plain())

    def _plain(self) -> torch.Tensor:
        full = whole(self.detach())
        return nn.Parameter(full, self.requires_grad) if self._is_param else full


def _shard_of(value: Any) -> Any:
    return value.shard if isinstance(value, ShardedParameter) else value


def shard_in_place(parameter: torch.Tensor, mesh: DeviceMesh, dim: int) -> None:
    """This object becomes a `ShardedParameter` that is split along `dim`. Every worker calls it, with equal values;
    nothing is sent."""
    shard = split(parameter.detach(), mesh, (Shard(dim),))
    grad = None if parameter.grad is None else split(parameter.grad, mesh, (Shard(dim),))
    made = make_wrapper_subclass(
        ShardedParameter,
        parameter.shape,
        strides=parameter.stride(),
        dtype=parameter.dtype,
        device=parameter.device,
        requires_grad=parameter.requires_grad,
    )
    made.shard, made._is_param = shard, isinstance(parameter, nn.Parameter)
    parameter.grad = None
    become(parameter, made)
    if grad is not None:
        parameter.grad = grad


def split_state(optimizer: torch.optim.Optimizer, note: Callable[[Any], None]) -> None:
    """Splits tensors of an optimizer's state that were made, or loaded, whole. `note` is told what is split."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, ShardedParameter) and isinstance(state, dict):
            for value in state.values():
                if type(value) is torch.Tensor and value.shape == parameter.shape:
                    note(value)
                    placement: Any = parameter.shard.placements[0]
                    shard_in_place(value, parameter.shard.device_mesh, placement.dim)


def is_in_use(parameter: nn.Parameter) -> bool:
    """Whether a graph or a hook refers to the parameter's old memory, so that it cannot be exchanged."""
    return bool(
        parameter._backward_hooks
        or getattr(parameter, "_post_accumulate_grad_hooks", None)
        or parameter._use_count() > 1  # type: ignore[attr-defined]
    )


# -- between whole tensors and shards ----------------------------------------------------------------------------------


def sharded(value: Any) -> DTensor:
    """The DTensor of a sharded parameter, with its graph; a DTensor as it is."""
    if isinstance(value, DTensor):
        return value
    if value.requires_grad and torch.is_grad_enabled():
        found: DTensor = _Enter.apply(value)
        return found
    return alias(value.shard)


@torch.no_grad()
def alias(shard: DTensor) -> DTensor:
    """Another tensor with the same memory, and without a graph."""
    return like(shard.to_local(), shard)


def whole(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor, plain; in backward each worker keeps its part of the gradient. Every worker calls it."""
    if isinstance(value, FusedHeads):
        return value.wholes([value])[0]
    if not is_sharded(value):
        return value
    return whole_of(sharded(value))


def own_heads(fused: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The rows of this worker's heads, of a parameter that has those of query, key and value one below the other. The
    parameter is gathered: that is less than its outputs would be."""
    parts: torch.Tensor = own_use(whole(fused), mesh).unflatten(0, (THIRDS, mesh.size(), -1))
    return parts[:, mesh.get_local_rank()].flatten(0, 1)


class _Enter(Function):
    """From a parameter to its DTensor: the gradient is laid like the parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: ShardedParameter) -> DTensor:
        ctx.placements = parameter.shard.placements
        return alias(parameter.shard)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> DTensor:
        return relaid(grad, ctx.placements)
