"""The policy of `large_batch=auto`: measures the gradient noise scale, and chooses rate rule and optimizer.

Gradients of two consecutive steps come from different samples and nearly the same weights: their product estimates
|G|² without noise, and their squares also contain the noise, tr Σ / B. So

    noise scale = B · (|g|² − g·g') / g·g'

where both are averaged over the measured steps before the division. The estimate needs no second worker and no
micro-batches; it is rough, because the weights move between two steps. Every worker holds the same gradients, so all
workers make the same choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from paceline.converge.schedules import scale_rate
from paceline.settings import RunSettings

BELOW = 2.0  # a batch is well below the noise scale if the noise scale is at least this many batches
MEASURED = 50  # steps to measure if the number of steps of the run is unknown


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The choice for the rest of the run, and its reason."""

    optimizer: str  # lamb or lars; empty: the script's own
    scale: float  # factor of the rate
    steps: int  # step at which the cosine decay ends; 0: no decay
    why: str


class NoiseEstimator:
    """Compares each step's gradients with those of the previous step."""

    def __init__(self, steps: int) -> None:
        self.steps = min(200, max(4, steps // 20)) if steps else MEASURED
        self._before: list[torch.Tensor] = []
        self._products: list[torch.Tensor] = []
        self._squares: list[torch.Tensor] = []
        self._taken = 0

    @torch.no_grad()
    def take(self, optimizer: Any) -> bool:
        """Measures the gradients before a step. Returns whether enough steps were measured."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        grads = [p.grad.float().clone() for p in parameters if p.grad is not None and p.grad.layout is torch.strided]
        if [g.shape for g in grads] == [b.shape for b in self._before] and grads:
            self._products.append(_sum(grads, self._before))
            self._squares.append((_sum(grads, grads) + _sum(self._before, self._before)) / 2)
        self._before = grads
        self._taken += 1
        if self._taken < self.steps:
            return False
        self._before = []
        return True

    def noise(self, batch: int) -> float | None:
        """The noise scale in samples; infinite if the gradients were only noise; None if none were measured."""
        if not self._products or not batch:
            return None
        product, square = (float(torch.stack(them).mean()) for them in (self._products, self._squares))
        if not math.isfinite(product + square):
            return None
        return math.inf if product <= 0 else batch * max(0.0, square - product) / product


def choose(
    *,
    noise: float | None,
    batch: int,
    times: float,
    rule: Any,
    steps: int,
    warm_up: int,
    layerwise: str,
    ghosts: int,
    known: bool,
) -> BatchPolicy:
    """Chooses rule and optimizer by the noise scale. `layerwise` is the optimizer that can replace the script's own;
    `known` says whether the number of steps of the whole run is known. A pure function."""
    below = noise is not None and noise >= BELOW * batch
    optimizer = "" if below else layerwise
    # With a known number of steps, the new optimizer derives its own rate from the number: see optimizer_swap.
    scale = 1.0 if optimizer and known else scale_rate(rule if below else "sqrt", times)
    large = noise is not None and math.isinf(noise)
    found = "unknown" if noise is None else "too large to measure" if large else f"about {noise:,.0f} samples"
    if below:
        why = f"gradients are mostly noise at this batch, so the rate is scaled × {scale:.3g} ({rule} rule)"
    elif optimizer:
        why = "a higher rate alone would not make up for fewer steps, so "
        why += f"{optimizer.upper()} adapts each layer's step length"
    else:
        why = f"this optimizer cannot be replaced, so the rate is scaled × {scale:.3g} (square root)"
    ways = [f"ghosts of {ghosts}"] if ghosts else []
    ways.append(f"warm-up over {warm_up} steps")
    ways.append(f"cosine to step {steps}" if steps else "no added decay")
    text = f"large_batch=auto: the noise scale is {found}, the batch has {batch:,} samples: {why}; {', '.join(ways)}"
    return BatchPolicy(optimizer=optimizer, scale=scale, steps=steps, why=text)


def growth(run: RunSettings) -> float:
    """The batch as a multiple of the script's own, according to the options; 2 if an option gives only a size."""
    for mod in run.mods:
        name, _, value = mod.partition("=")
        if name == "emulate":
            return float(value)
        if name == "batch":
            size = value.partition(":")[0]
            return float(size[1:]) if size.startswith("x") else 2.0
    return float(run.workers) if run.batch == "scale" else 1.0


def _sum(one: list[torch.Tensor], other: list[torch.Tensor]) -> torch.Tensor:
    products = torch._foreach_mul(one, other)
    return torch.stack([product.sum().double().to(one[0].device) for product in products]).sum()
