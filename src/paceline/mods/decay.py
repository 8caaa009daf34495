"""Decay: the learning rate goes down along half a cosine, to nothing at a given step.

Changes: the mathematics: late steps are smaller. Applies to every optimizer that has no scheduler of torch's, for the
time of its step. Can break: accuracy, where the number of steps is not that of the whole run; after it, the rate stays
at a hundredth.

By hand:

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.converge.schedules import factor
from paceline.mods.support.learning_rates import Rates
from paceline.script.seams.stage import Stage

END = 0.01  # of the rate: what is left, also after the last step


class Mod:
    """Counts each optimizer's steps, and multiplies its rates while it makes them."""

    def __init__(self, value: str) -> None:
        self.steps = int(value)
        self._made: Counter[int] = Counter()  # by optimizer

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.rates = stage, Rates.of(stage)
        stage.subscribe(self)

    def before_step(self, optimizer: Any) -> None:
        if has_schedule(optimizer):
            self.stage.pulse.notice("decay does nothing: the script has a schedule of its own.")
            return
        self.rates.decay(optimizer, factor(self._made[id(optimizer)], steps=self.steps, decay="cosine", end=END))

    def after_step(self, optimizer: Any) -> None:
        self._made[id(optimizer)] += 1


def has_schedule(optimizer: Any) -> bool:
    """Whether a scheduler of torch's holds this optimizer."""
    return any("initial_lr" in group for group in optimizer.param_groups)
