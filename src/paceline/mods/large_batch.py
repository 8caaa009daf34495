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

import types
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.converge.ghost_bn.module import KINDS as NORMS
from paceline.converge.ghost_bn.module import SIZE, ghost
from paceline.converge.schedules import factor
from paceline.mods.decay import END, has_schedule
from paceline.mods.optimizer import KINDS
from paceline.mods.support.learning_rates import Rates, usual_rule
from paceline.mods.support.noise_policy import BatchPolicy, NoiseEstimator, choose, growth
from paceline.mods.support.optimizer_swap import NAMES, Redirected
from paceline.script.seams.stage import Stage


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
