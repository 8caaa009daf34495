"""LARS: momentum, with a learning rate per layer proportional to the ratio of weight norm to gradient norm.

    rate = η · ‖w‖ / (‖g‖ + λ·‖w‖ + ε)      (1 where either norm is zero)
    b ← μ·b + rate · (g + λ·w)
    w ← w − lr · b

The momentum is torch.optim.SGD's: for parameters that are not adapted, the steps are the same as SGD's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.converge.optimizers.layerwise import Layerwise, norms, wide
from paceline.converge.optimizers.tensor_tables import ADAPTED, DECAYED, Table, TensorBatch
from paceline.errors import UsageError


class LARS(Layerwise):
    """LARS with torch.optim's interface. `trust` is η. Biases, norm parameters, `adapt`, `fused` and `capturable` work
    as in `LAMB`."""

    moments = ("momentum_buffer",)
    counts_steps = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        eps: float = 1e-8,
        *,
        nesterov: bool = False,
        adapt: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if nesterov and momentum <= 0:
            raise UsageError(
                f"nesterov=True needs momentum, and momentum is {momentum}.",
                advice="LARS(…, momentum=0.9, nesterov=True)",
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "eps": eps,
            "nesterov": nesterov,
            "adapt": adapt,
            "maximize": maximize,
            "capturable": capturable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _foreach_step(self, group: dict[str, Any], batch: TensorBatch) -> None:
        decay, momentum = group["weight_decay"], group["momentum"]
        weights, buffers = wide(batch.parameters), batch.state("momentum_buffer")
        # Copies, because they are scaled in place below, and the gradients belong to the script.
        updates = list(torch._foreach_mul(wide(batch.grads), -1.0 if group["maximize"] else 1.0))
        if adapted := batch.treated(ADAPTED, updates):
            w, g = norms(batch, batch.treated(ADAPTED, weights), adapted)
            rate = group["trust"] * w / (g + decay * w + group["eps"])
            rate = torch.where((w > 0) & (g > 0), rate, 1.0)
        if decay and (decayed := batch.treated(DECAYED, updates)):
            torch._foreach_add_(decayed, batch.treated(DECAYED, weights), alpha=decay)
        if adapted:
            torch._foreach_mul_(adapted, list(rate.unbind()))
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, updates)
        if group["nesterov"]:
            torch._foreach_add_(updates, wide(buffers), alpha=momentum)
        else:
            updates = list(torch._foreach_mul(wide(buffers), 1.0))
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(batch.parameters, updates)

    def _fused_step(self, group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
        from paceline.converge.optimizers.kernels import launch_lars

        launch_lars(group, table, scale, found_inf)
