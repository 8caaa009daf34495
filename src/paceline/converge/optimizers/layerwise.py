"""The base of LARS and LAMB: each tensor's step is scaled by a ratio of its own norms.

A step processes all tensors of a group at once: in a few Triton kernels on a GPU (fused), elsewhere in torch's foreach
operations. Norms cover whole tensors: for DTensor parameters, sums of squares are summed over the workers that hold the
shards, in one all-reduce per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.converge.optimizers.tensor_tables import (
    ADAPTED,
    DECAYED,
    Prepared,
    States,
    Table,
    TensorBatch,
    can_fuse,
    is_dtensor,
    local,
)
from paceline.errors import PacelineError, UsageError
from paceline.torch_private import is_capturing

HALF = (torch.float16, torch.bfloat16)
_grad = attrgetter("grad")


class Layerwise(Optimizer):
    """The common base. A subclass names the tensors of its state, and computes the step of a batch of tensors."""

    moments: tuple[str, ...]  # state tensors with the parameter's layout
    counts_steps: bool

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._prepared: dict[int, Prepared] = {}  # by group index, for groups that are fused completely
        self._states = States({})  # the states for which `_prepared` holds
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepared, self._states = {}, States({})
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        check_settings(group)
        refuse_float16(type(self).__name__, group["params"])
        for parameter in group["params"]:
            if group["fused"] and not can_fuse(parameter):
                raise UsageError(
                    f"{type(self).__name__}(fused=True) cannot handle a parameter of {parameter.dtype} on "
                    f"{parameter.device}: it needs CUDA, Triton, and contiguous float32 or bfloat16 weights.",
                    advice="Leave fused out: the fused form is chosen wherever it works.",
                )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by torch's gradient scaler: the fused kernels unscale gradients and skip steps themselves."""
        return all(
            number in self._prepared or all(_is_fused(group, parameter) for parameter in group["params"])
            for number, group in enumerate(self.param_groups)
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step. With DTensor parameters every worker calls it, and waits for the others' norms."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._prepared and not self._states.hold(self.state):
            self._prepared = {}
        capturing, anew = is_capturing(), False
        for number, group in enumerate(self.param_groups):
            if capturing and not group["capturable"]:
                raise PacelineError(
                    f"{type(self).__name__} steps during CUDA graph capture, but was made with capturable=False.",
                    advice=f"{type(self).__name__}(…, capturable=True)",
                )
            grads = list(map(_grad, group["params"]))
            if not self._step_as_before(number, group, grads):
                anew |= self._step_anew(number, group)
        if anew and self._prepared:
            self._states = States(self.state)
        return loss

    def _step_as_before(self, number: int, group: dict[str, Any], grads: list[Tensor | None]) -> bool:
        """The step of a group whose tensors are at the same addresses as in the last step: only launches kernels."""
        prepared = self._prepared.get(number)
        found = None if prepared is None else prepared.holds(group, grads)
        if prepared is None or found is None:
            return False
        here, addresses = found
        for table, numbers in prepared.tables:
            if len(numbers) == len(here):
                self._launch(group, table, here, addresses)
            else:
                self._launch(group, table, [here[i] for i in numbers], addresses and [addresses[i] for i in numbers])
        return True

    def _step_anew(self, number: int, group: dict[str, Any]) -> bool:
        """The step of a group without valid tables. Returns whether the group had any gradients."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return False
        batches = self._batches(group, parameters)
        tables = []
        for (fused, *_), batch in batches.items():
            if not fused:
                self._foreach_step(group, batch)
                continue
            if is_capturing():
                raise PacelineError(
                    f"{type(self).__name__} sees tensors for the first time during CUDA graph capture.",
                    advice="Make one step before the capture, as for every optimizer with state.",
                )
            table = Table(batch, self.moments)
            self._launch(group, table, batch.grads, None)
            tables.append((table, batch.numbers))
        self._prepared.pop(number, None)
        if len(tables) == len(batches):
            states = [self.state[parameter] for parameter in parameters]
            names = (*self.moments, "step") if self.counts_steps else self.moments
            self._prepared[number] = Prepared(group, states, names, tables)
        return True

    def _launch(self, group: dict[str, Any], table: Table, grads: list[Tensor], addresses: list[int] | None) -> None:
        device = table.device
        here: AbstractContextManager[Any] = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with here:
            read = table.take(grads, addresses)
            # Set by torch's gradient scaler for the duration of this step.
            scale, found = (_on(getattr(self, name, None), device) for name in ("grad_scale", "found_inf"))
            self._fused_step(group, table, scale, found)
            if scale is not None:  # a script that reads a gradient after the step must find it unscaled
                for grad, unscaled in zip(grads, read, strict=True):
                    if unscaled is not grad:
                        grad.copy_(unscaled)

    def _batches(self, group: dict[str, Any], parameters: list[Tensor]) -> dict[tuple[Any, ...], TensorBatch]:
        """The parameters that have gradients, in batches of equal type and sharding; makes missing state."""
        found: dict[tuple[Any, ...], TensorBatch] = {}
        for number, parameter in enumerate(parameters):
            grad = cast(Tensor, parameter.grad)
            if grad.layout != torch.strided:
                raise UsageError(
                    f"{type(self).__name__} cannot handle the sparse gradient of a parameter of shape "
                    f"{tuple(parameter.shape)}: the norm of a layer needs a dense gradient.",
                    advice="Make it dense (nn.Embedding(…, sparse=False)), or use torch.optim.SparseAdam for it.",
                )
            fused = _is_fused(group, parameter)
            mesh, sharded = _sharding(parameter)
            own, own_grad = local(parameter), local(grad)
            if not fused and own_grad.dtype != own.dtype:
                own_grad = own_grad.to(own.dtype)
            state = self._ready_state(group, parameter, fused)
            # The moments of a model that was cast after a step keep the old type.
            kept = local(state[self.moments[0]]).dtype
            key = (fused, own.device, own.dtype, own_grad.dtype, kept, mesh, sharded)
            batch = found.setdefault(key, TensorBatch(mesh=mesh, sharded=sharded))
            batch.numbers.append(number)
            batch.parameters.append(own)
            batch.grads.append(own_grad)
            batch.states.append(state)
            batch.treatment.append(_treatment(group["adapt"], parameter))
        return found

    def _ready_state(self, group: dict[str, Any], parameter: Tensor, fused: bool) -> dict[str, Any]:
        state = self.state[parameter]
        dtype = state.get(self.moments[0], parameter).dtype
        for name in self.moments:
            moment = state.get(name)
            # Kernels iterate over memory: a loaded state may have another layout.
            if moment is None or (
                fused and (local(moment).stride() != local(parameter).stride() or moment.dtype != dtype)
            ):
                state[name] = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)
                if moment is not None:
                    state[name].copy_(moment)
        if self.counts_steps:
            # On the device if kernels count the steps; else on the host, where reading it is free.
            home = parameter.device if fused or group["capturable"] else torch.device("cpu")
            step = state.get("step")
            if step is None:
                state["step"] = torch.zeros((), dtype=torch.float32, device=home)
            elif step.device != home:
                state["step"] = step.to(home)
        return state

    def _foreach_step(self, group: dict[str, Any], batch: TensorBatch) -> None:
        raise NotImplementedError

    def _fused_step(self, group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
        raise NotImplementedError


def check_settings(group: dict[str, Any]) -> None:
    """UsageError for a setting out of range, before the first step."""
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise UsageError(f"lr has {lr.numel()} numbers: it must be one number, or a tensor with one.")
    for name in ("lr", "weight_decay", "eps", "trust"):
        value = group.get(name, 0.0)
        # A tensor's value is not checked: reading it could wait for a busy device.
        if not isinstance(value, Tensor) and not value >= 0.0:
            raise UsageError(f"{name}={value} is out of range: give a number of at least 0.")
    decays = {"momentum": group.get("momentum", 0.0)} | dict(zip(("β1", "β2"), group.get("betas", ()), strict=False))
    for name, value in decays.items():
        if not 0.0 <= value < 1.0:
            raise UsageError(f"{name}={value} is out of range: give a number from 0 to below 1.")


def refuse_float16(name: str, parameters: Iterable[Tensor]) -> None:
    """UsageError for float16 weights: the moments have the weights' type, and squared gradients underflow there."""
    if any(parameter.dtype is torch.float16 for parameter in parameters):
        raise UsageError(
            f"{name} cannot train weights in float16: squared gradients underflow to zero.",
            advice="Keep the weights in float32 (or bfloat16) and compute under torch.autocast.",
        )


def norms(batch: TensorBatch, *sides: list[Tensor]) -> list[Tensor]:
    """The norms of whole tensors, one vector per side. Waits for the workers that hold other shards."""
    found = [torch.stack(torch._foreach_norm(side, 2.0)) for side in sides]
    if not batch.sharded:
        return found
    squares = torch.stack(found).square_()
    add_up(squares, batch.mesh, batch.sharded)
    return list(squares.sqrt_().unbind())


def add_up(squares: Tensor, mesh: Any, sharded: tuple[int, ...]) -> None:
    """Sums in place over the workers that hold shards of the same tensors. Each of them calls it."""
    for dimension in sharded:
        torch.distributed.all_reduce(squares, group=mesh.get_group(dimension))


def wide(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors in float32 if they are of half precision: an update needs more digits than the weight."""
    return [tensor.float() for tensor in tensors] if tensors[0].dtype in HALF else tensors


def _treatment(adapt: bool | None, parameter: Tensor) -> int:
    if adapt is None:
        return ADAPTED | DECAYED if parameter.dim() > 1 else 0
    return ADAPTED | DECAYED if adapt else DECAYED


def _is_fused(group: dict[str, Any], parameter: Tensor) -> bool:
    return group["fused"] is not False and can_fuse(parameter)


def _sharding(parameter: Any) -> tuple[Any, tuple[int, ...]]:
    if not is_dtensor(parameter):
        return None, ()
    if any(placement.is_partial() for placement in parameter.placements):
        raise UsageError(
            "A DTensor parameter holds partial sums (Partial placement): its norm is unknown.",
            advice="Redistribute it to Replicate or Shard before the optimizer is made.",
        )
    sharded = tuple(d for d, placement in enumerate(parameter.placements) if placement.is_shard())
    return parameter.device_mesh, sharded


def _on(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device=device, dtype=torch.float32)
