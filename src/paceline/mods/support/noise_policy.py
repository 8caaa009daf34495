"""What `large_batch=auto` goes by: how noisy gradients are, and what follows from that.

Gradients of two steps in a row are of different samples and nearly the same weights: their product is an estimate of
|G|², without the noise, and their squares have all of it, tr Σ / B. So

    noise scale = B · (|g|² − g·g') / g·g'

with both averaged over the measured steps before they are divided. That takes no second worker and no micro-batches; it
is rough, since weights do move. Every worker holds the same gradients, so all choose alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from paceline.converge.schedules import scale_rate
from paceline.settings import RunSettings

BELOW = 2.0  # the noise scale in batches, from which on a batch is well below it
MEASURED = 50  # steps, where nobody knows how many there will be


@dataclass(frozen=True, slots=True)
class Choice:
    """What is done from now on, and why."""

    optimizer: str  # lamb, lars; none: the script's own
    scale: float  # of the rate
    steps: int  # at which the cosine ends; 0: there is none
    why: str


class Meter:
    """Compares each step's gradients with those of the step before."""

    def __init__(self, steps: int) -> None:
        self.steps = min(200, max(4, steps // 20)) if steps else MEASURED
        self._before: list[torch.Tensor] = []
        self._products: list[torch.Tensor] = []
        self._squares: list[torch.Tensor] = []
        self._taken = 0

    @torch.no_grad()
    def take(self, optimizer: Any) -> bool:
        """Looks at the gradients of a step that is about to be made. Says whether it has seen enough."""
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
        """The noise scale in samples; infinite where nothing but noise was seen; None where nothing was."""
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
) -> Choice:
    """From the noise scale to rule and optimizer. `layerwise` is what could take the place of the script's own;
    `known`: the number of steps of the whole run is. Pure."""
    below = noise is not None and noise >= BELOW * batch
    optimizer = "" if below else layerwise
    # How far layers go is known where the number of steps is.
    scale = 1.0 if optimizer and known else scale_rate(rule if below else "sqrt", times)
    found = "unknown" if noise is None else "beyond measure" if math.isinf(noise) else f"about {noise:,.0f} samples"
    if below:
        why = f"gradients are mostly noise at this batch, so the rate is scaled × {scale:.3g} ({rule} rule)"
    elif optimizer:
        why = "a higher rate alone would not make up for fewer steps, so "
        why += f"{optimizer.upper()} gives each layer a step of its own length"
    else:
        why = f"no other optimizer can take the place of this one, so the rate is scaled × {scale:.3g} (square root)"
    ways = [f"ghosts of {ghosts}"] if ghosts else []
    ways.append(f"warm-up over {warm_up} steps")
    ways.append(f"cosine to step {steps}" if steps else "no decay of its own")
    text = f"large_batch=auto: the noise scale is {found}, the batch has {batch:,}: {why}; {', '.join(ways)}"
    return Choice(optimizer=optimizer, scale=scale, steps=steps, why=text)


def growth(run: RunSettings) -> float:
    """How many times the script's own batch a step takes, by what was asked for; 2 where only a size was."""
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
