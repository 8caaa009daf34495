"""Decay: cosine decay of the learning rate, to 1 % at step N.

Changes: the mathematics: late steps are smaller. Applies to every optimizer without a torch scheduler, during its step
only. Can break: accuracy, if N is not the number of steps of the whole run; after step N the rate stays at 1 %.

By hand:

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.converge.schedules import factor
from paceline.mods.lr_scale import Rates
from paceline.script.seams.stage import Stage

END = 0.01  # the rate at step N and later, relative to the script's rate


class Mod:
    """Counts each optimizer's steps, and multiplies its rates during each step."""

    def __init__(self, value: str) -> None:
        self.steps = int(value)
        self._made: Counter[int] = Counter()  # by optimizer

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.rates = stage, Rates.of(stage)
        stage.subscribe(self)

    def before_step(self, optimizer: Any) -> None:
        if has_schedule(optimizer):
            self.stage.pulse.not_in_force(f"decay={self.steps}", "the script has a schedule of its own.")
            return
        self.rates.decay(optimizer, factor(self._made[id(optimizer)], steps=self.steps, decay="cosine", end=END))

    def after_step(self, optimizer: Any) -> None:
        self._made[id(optimizer)] += 1


def has_schedule(optimizer: Any) -> bool:
    """Whether a torch scheduler controls this optimizer."""
    return any("initial_lr" in group for group in optimizer.param_groups)
