"""Optimizer: LAMB or LARS instead of the script's SGD, Adam or AdamW.

Changes: the mathematics: each layer's step length is adapted to the norm of its weights. The script's settings stay in
force: weight decay, momentum (as LAMB's β1), Adam's betas and ε, groups, schedulers. Biases and parameters of norms are
neither adapted nor decayed. By default, the learning rate makes the first steps as long as the script's own optimizer
would make them; `optimizer=lamb:0.02` sets the layers' rate to 0.02 at the script's first rate. Applies to torch's SGD,
Adam and AdamW, whose objects stay: `zero_grad`, `state_dict` and schedulers work as before.
Can break: accuracy at small batches; the plain script cannot load an optimizer state that was saved with this mod.

By hand:

    optimizer = paceline.LAMB(paceline.no_decay(model), lr=0.02, weight_decay=0.01)
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer

from paceline.converge.optimizers.layerwise import refuse_float16
from paceline.errors import ScriptError, UsageError
from paceline.mods.support.optimizer_swap import Redirected
from paceline.script.seams.stage import Stage

KINDS = (SGD, Adam, AdamW)


class Mod:
    """Replaces the `step` of optimizers, before their first step."""

    def __init__(self, value: str) -> None:
        self.name, _, rate = value.partition(":")
        self.rate = float(rate) if rate else None
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)

    def on_optimizer(self, optimizer: Any) -> None:
        if self.stage.aside:
            return
        if type(optimizer) not in KINDS or optimizer.defaults.get("differentiable"):
            raise ScriptError(
                f"--mod optimizer={self.name}: the script has {type(optimizer).__name__}, and the mod replaces only "
                "SGD, Adam and AdamW.",
                advice="Leave the mod out, or change the optimizer in the script.",
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        try:
            refuse_float16(self.name.upper(), parameters)
        except UsageError as error:
            raise ScriptError(error.message, advice=error.advice) from None
        self.put_into(optimizer)

    def put_into(self, optimizer: Any) -> None:
        """From now on, `optimizer.step` makes a LAMB or LARS step."""
        told = [int(mod.partition("=")[2]) for mod in self.stage.run.mods if mod.startswith("decay=")]
        redirected = Redirected(optimizer, self.name, self.rate, self.stage, steps=told[0] if told else 0)
        step = Optimizer.profile_hook_step(lambda self, closure=None: redirected.step(self, closure))
        optimizer.step = types.MethodType(step, optimizer)
        self._met.add(optimizer)

    def before_backward(self, losses: Any) -> None:
        for optimizer in self._met:  # then the script's gradient scaler unscales gradients before the step
            optimizer._step_supports_amp_scaling = False
