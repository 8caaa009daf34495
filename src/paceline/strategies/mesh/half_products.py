"""Matrix products in half precision, of which each worker of the axis model computes a part.

In one process a product is accumulated in float32 and rounded once. The parts of a product are therefore computed in
float32, summed in float32 over the axis, and rounded afterwards: in forward, if the weight is split by its input; in
backward, if it is split by its output. Otherwise each part would be rounded to 8 bits before the sum.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh

from paceline.script.rows.crossings import HALF, named
from paceline.spread.dtensors import own_use, summed


def half_type(x: torch.Tensor) -> torch.dtype | None:
    """The type in which torch computes a linear layer of this input, if it is half precision."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.is_floating_point() and x.dtype is not torch.float64:
        chosen = torch.get_autocast_dtype(device)
    else:
        chosen = x.dtype
    return chosen if chosen in HALF else None


def by_output(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, mesh: DeviceMesh, name: str) -> torch.Tensor:
    """F.linear with a plain input and this worker's rows of the weight. In backward the parts of the input's gradient
    are summed. `name`: of its gradient function. Every worker of the axis calls it."""
    found: torch.Tensor = named(_ByOutput, name).apply(x, w, bias, mesh)
    return found


def wide(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """F.linear with a result in float32; the gradients have the type of the arguments."""
    return _Wide.apply(x, w)


class _ByOutput(Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, mesh: DeviceMesh
    ) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.mesh, ctx.has_bias = mesh, bias is not None
        with _as_given(x):
            return F.linear(x, w, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        grad_x = grad_w = grad_bias = None
        with _as_given(x):
            if ctx.needs_input_grad[0]:
                grad_x = summed(_product(grad, w.t()), ctx.mesh, dtype=x.dtype)
            if ctx.needs_input_grad[1]:
                grad_w = _rows(grad).t() @ _rows(own_use(x, ctx.mesh))
            if ctx.has_bias and ctx.needs_input_grad[2]:
                grad_bias = _rows(grad).sum(0)
        return grad_x, grad_w, grad_bias, None


class _Wide(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        with _as_given(x):
            return _product(x, w)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        grad = grad.to(x.dtype)  # the sum was rounded to this type: no digit is lost
        with _as_given(x):
            grad_x = grad @ w if ctx.needs_input_grad[0] else None
            grad_w = _rows(grad).t() @ _rows(x) if ctx.needs_input_grad[1] else None
        return grad_x, grad_w


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x · wᵀ in float32. Products of two numbers of half precision are exact there."""
    if x.is_cuda and not torch.is_grad_enabled():  # on tensor cores, and without copies in float32
        flat: torch.Tensor = torch.mm(_rows(x), w.t(), out_dtype=torch.float32)
        return flat.unflatten(0, x.shape[:-1]) if x.dim() > 1 else flat.flatten()
    return F.linear(x.float(), w.float())


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _as_given(x: torch.Tensor) -> Any:
    """Computes in the types of the tensors, whatever the script's autocast says."""
    return torch.autocast(x.device.type, enabled=False)
