"""Warm-up: the learning rate goes up in a line, over so many steps.

Changes: the mathematics of the first steps. Where other mods scale the rate (`batch`, `lr_scale`), it goes from the
script's own rate to the scaled one; where none does, or another optimizer was put in place (`optimizer`), from nothing.
Applies to every optimizer, for the time of its step: a scheduler of the script's never notices, and both are
multiplied. Can break: nothing known; a run that is resumed from the script's checkpoint warms up again.

By hand:

    schedule = paceline.ScaledRate(optimizer, batch=K, warm_up=STEPS)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.mods.support.learning_rates import Rates
from paceline.script.seams.stage import Stage


class Mod:
    """Counts each optimizer's steps, and multiplies its rates while it makes the first ones."""

    def __init__(self, value: str) -> None:
        self.steps = int(value)
        self._made: Counter[int] = Counter()  # by optimizer

    def on_stage(self, stage: Stage) -> None:
        self.rates = Rates.of(stage)
        if any(mod.startswith("optimizer=") for mod in stage.run.mods):
            self.rates.start = 0.0  # there is no rate of the script's own for it
        stage.subscribe(self)

    def before_step(self, optimizer: Any) -> None:
        made = self._made[id(optimizer)]
        if made < self.steps:
            # A step at no rate at all would be a lost one: half a step further on.
            self.rates.warm(optimizer, (made + 0.5) / self.steps)

    def after_step(self, optimizer: Any) -> None:
        self._made[id(optimizer)] += 1
