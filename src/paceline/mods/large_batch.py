"""Large batch: `large_batch=auto` measures the gradient noise scale, then chooses rate rule, warm-up and optimizer.

Changes: the mathematics. The rate warms up over a sixth of the steps; in the first of them (a twentieth of STEPS, 4 to
200) the script's own optimizer runs, and the noise scale is measured. If the batch is well below the noise scale, the
rate is scaled by the usual rule. Otherwise a higher rate does not help, and LARS (in models with batch norms) or LAMB
replaces SGD or Adam. With `large_batch=auto:STEPS` (steps of the whole run) and without a schedule in the script, the
rate has a cosine decay. Batch norms become ghosts of 32. Applies to enlarged batches: `--emulate`, `batch`, `--batch
scale`. Can break: accuracy; the choice rests on a few papers and a table: docs/converge.md.

By hand:

    model = paceline.ghost(model, 32)
    optimizer = paceline.LAMB(paceline.no_decay(model), lr=0.02)
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.converge.ghost_bn.module import KINDS as NORMS
from paceline.converge.ghost_bn.module import SIZE, ghost
from paceline.converge.schedules import factor, scale_rate
from paceline.mods.decay import END, has_schedule
from paceline.mods.lr_scale import Rates, usual_rule
from paceline.mods.optimizer import KINDS, NAMES, Redirected
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings


class Mod:
    """Changes only the first optimizer that steps; other optimizers keep their rates."""

    def __init__(self, value: str) -> None:
        self.steps = int(value.partition(":")[2] or 0)
        self.warm_up = max(5, self.steps // 6) if self.steps else 100
        self._choice: BatchPolicy | None = None
        self._made = self._batch = self._ghosts = 0
        self._enough = False  # enough steps were measured for a choice
        self._primary: Any = None
        self._redirected: dict[int, dict[str, Redirected]] = {}

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.times, self.meter = stage, growth(stage.run), NoiseEstimator(self.steps)
        if self.times <= 1:
            stage.pulse.not_in_force("large_batch=auto", "the batch is the script's own (see --emulate).")
            return
        self.rates = Rates.of(stage)
        self.rates.start = 0.0  # until the choice is to scale the script's own rate
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if any(type(child) in NORMS for child in module.modules()):
            ghost(module, SIZE)
            self._ghosts, self.stage.views.norms_see_batch = SIZE, False

    def on_batch(self, batch: Any) -> None:
        self._batch = self._batch or self.stage.views.batch_size(batch)

    def on_optimizer(self, optimizer: Any) -> None:
        halves = any(p.dtype is torch.float16 for group in optimizer.param_groups for p in group["params"])
        if type(optimizer) not in KINDS or optimizer.defaults.get("differentiable") or halves or self.stage.aside:
            return
        made = {name: Redirected(optimizer, name, None, self.stage, steps=self.steps) for name in NAMES}
        self._redirected[id(optimizer)] = made
        plain = type(optimizer).step.__wrapped__

        def step(own: Any, closure: Any = None) -> Any:
            chosen = self._choice.optimizer if self._choice is not None and own is self._primary else ""
            return made[chosen].step(own, closure) if chosen else plain(own, closure)

        optimizer.step = types.MethodType(Optimizer.profile_hook_step(step), optimizer)

    def before_backward(self, losses: Any) -> None:
        if self._choice is not None and self._choice.optimizer:
            self._primary._step_supports_amp_scaling = False  # the script's gradient scaler unscales before the step

    def before_step(self, optimizer: Any) -> None:
        self._primary = self._primary or optimizer
        if optimizer is not self._primary:
            return
        choice = self._choice
        if choice is not None and choice.scale != 1.0:
            self.rates.scale(optimizer, choice.scale)
        if self._made < self.warm_up:
            self.rates.warm(optimizer, (self._made + 0.5) / self.warm_up)
        if choice is not None and choice.steps:
            cosine: dict[str, Any] = {"steps": choice.steps, "decay": "cosine", "end": END}
            left = factor(self._made, warm_up=self.warm_up, start=1.0, **cosine)
            self.rates.decay(optimizer, left)
        self._made += 1
        self._enough = choice is None and self.meter.take(optimizer)

    def after_step(self, optimizer: Any) -> None:
        if self._enough and optimizer is self._primary:
            self._enough = False
            self._choose(optimizer)

    def _choose(self, optimizer: Any) -> None:
        batch = self._batch or self.stage.views.rows
        self._choice = choose(
            noise=self.meter.noise(batch),
            batch=batch,
            times=self.times,
            rule=usual_rule(self.stage, optimizer),
            steps=0 if has_schedule(optimizer) else self.steps,
            warm_up=self.warm_up,
            layerwise=("lars" if self._ghosts else "lamb") if id(optimizer) in self._redirected else "",
            ghosts=self._ghosts,
            known=bool(self.steps),
        )
        if not self._choice.optimizer:
            self.rates.start = None
        self.stage.pulse.notice(self._choice.why)


# -- auto: the gradient noise scale, and what follows -----------------------------------------------------------------
# Gradients of two consecutive steps come from different samples and nearly the same weights: their product estimates
# |G|² without noise, and their squares also contain the noise, tr Σ / B. So
#
#     noise scale = B · (|g|² − g·g') / g·g'
#
# where both are averaged over the measured steps before the division. The estimate needs no second worker and no micro-
# batches; it is rough, because the weights move between two steps. Every worker holds the same gradients, so all
# workers make the same choice.


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
