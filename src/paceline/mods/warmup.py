"""Warm-up: linear warm-up of the learning rate over the first N steps.

Changes: the mathematics of the first steps. If another mod scales the rate (`batch`, `lr_scale`), the rate rises from
the script's own to the scaled one. Otherwise, and with the mod `optimizer`, it rises from zero. Applies to every
optimizer, during its step only: the script's scheduler is not affected, and both factors multiply. Can break: nothing
known; a run that resumes from the script's checkpoint warms up again.

By hand:

    schedule = paceline.ScaledRate(optimizer, batch=K, warm_up=STEPS)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.mods.lr_scale import Rates
from paceline.script.seams.stage import Stage


class Mod:
    """Counts each optimizer's steps, and multiplies its rates during the first N."""

    def __init__(self, value: str) -> None:
        self.steps = int(value)
        self._made: Counter[int] = Counter()  # by optimizer

    def on_stage(self, stage: Stage) -> None:
        self.rates = Rates.of(stage)
        if any(mod.startswith("optimizer=") for mod in stage.run.mods):
            self.rates.start = 0.0  # the script has no rate for the new optimizer
        stage.subscribe(self)

    def before_step(self, optimizer: Any) -> None:
        made = self._made[id(optimizer)]
        if made < self.steps:
            # Half a step ahead: a first step with rate zero would be wasted.
            self.rates.warm(optimizer, (made + 0.5) / self.steps)

    def after_step(self, optimizer: Any) -> None:
        self._made[id(optimizer)] += 1
