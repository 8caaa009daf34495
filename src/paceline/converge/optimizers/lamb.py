"""LAMB: Adam's direction, with a step length per layer proportional to the layer's weight norm.

    m ← β1·m + (1 − β1)·g          m̂ = m / (1 − β1ᵗ)
    v ← β2·v + (1 − β2)·g²         v̂ = v / (1 − β2ᵗ)
    u = m̂ / (√v̂ + ε) + λ·w
    w ← w − lr · ‖w‖ / ‖u‖ · u      (ratio 1 where either norm is zero)

Weight decay is added to the update, not to the gradient, and counts in the norm of the update.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.converge.optimizers.layerwise import Layerwise, norms, wide
from paceline.converge.optimizers.tensor_tables import ADAPTED, DECAYED, Table, TensorBatch


class LAMB(Layerwise):
    """LAMB with torch.optim's interface. Biases and norm parameters (all parameters with fewer than two dimensions) are
    neither adapted nor decayed, unless a group sets `adapt=True` or `adapt=False`: then all of the group is adapted or
    none of it, and the group's `weight_decay` applies. `paceline.no_decay(model)` makes such groups by module type.

    `fused`: None uses Triton kernels where they work (CUDA), False never. `lr` may be a tensor; for CUDA graph capture
    set `capturable=True`. Sparse gradients are refused.
    """

    moments = ("exp_avg", "exp_avg_sq")
    counts_steps = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        adapt: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": adapt,
            "maximize": maximize,
            "capturable": capturable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _foreach_step(self, group: dict[str, Any], batch: TensorBatch) -> None:
        beta1, beta2 = group["betas"]
        parameters, first, second = batch.parameters, batch.state("exp_avg"), batch.state("exp_avg_sq")
        grads = list(torch._foreach_neg(batch.grads)) if group["maximize"] else batch.grads
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        rest1, root2 = _corrections(batch.state("step"), beta1, beta2, on_device=group["capturable"])
        below = list(torch._foreach_sqrt(wide(second)))
        torch._foreach_div_(below, root2)
        torch._foreach_add_(below, group["eps"])
        updates = list(torch._foreach_div(wide(first), rest1))
        torch._foreach_div_(updates, below)
        weights = wide(parameters)
        if group["weight_decay"] and (decayed := batch.treated(DECAYED, updates)):
            torch._foreach_add_(decayed, batch.treated(DECAYED, weights), alpha=group["weight_decay"])
        if adapted := batch.treated(ADAPTED, updates):
            w, u = norms(batch, batch.treated(ADAPTED, weights), adapted)
            ratio = torch.where((w > 0) & (u > 0), w / u, 1.0)
            torch._foreach_mul_(adapted, list(ratio.unbind()))
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(parameters, updates)

    def _fused_step(self, group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
        from paceline.converge.optimizers.kernels import launch_lamb

        launch_lamb(group, table, scale, found_inf)


def _corrections(steps: list[Tensor], beta1: float, beta2: float, *, on_device: bool) -> tuple[Any, Any]:
    """Counts the step. Returns 1 − β1ᵗ and √(1 − β2ᵗ) per tensor: as numbers, or as tensors if reading would wait."""
    torch._foreach_add_(steps, 1.0)
    if not on_device:
        counts = [step.item() for step in steps]
        return [1 - beta1**count for count in counts], [(1 - beta2**count) ** 0.5 for count in counts]
    found = []
    for beta in (beta1, beta2):
        powers = list(torch._foreach_pow(beta, [step.double() for step in steps]))
        torch._foreach_neg_(powers)
        torch._foreach_add_(powers, 1.0)
        found.append(powers)
    torch._foreach_sqrt_(found[1])
    return [power.float() for power in found[0]], [power.float() for power in found[1]]
