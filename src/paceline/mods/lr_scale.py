"""Learning-rate scale: the script's learning rate for a batch that is K times as large.

Changes: the mathematics: each step's rate is multiplied by K (linear) or its square root. Where nothing is said: linear
for plain gradient descent and LARS, the square root for optimizers that divide by the size of gradients (Adam, LAMB).
Applies to every optimizer, for the time of its step: a scheduler of the script's never notices. The mod `batch` scales
the rate by itself; this one is for batches that grew otherwise (`--batch scale`, `--emulate`), or with `batch=…:none`.
Can break: accuracy. Scaled at once, a rate is too high for the first steps: see `warmup`.

By hand:

    optimizer = torch.optim.SGD(model.parameters(), lr=K * lr)
"""

from __future__ import annotations

from typing import Any

from paceline.converge.schedules import scale_rate
from paceline.mods.support.learning_rates import Rates, usual_rule
from paceline.script.seams.stage import Stage


class Mod:
    """Multiplies rates while an optimizer steps."""

    def __init__(self, value: str) -> None:
        times, _, self.rule = value.partition(":")
        self.times = float(times)
        self._told = False

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.rates = stage, Rates.of(stage)
        stage.subscribe(self)

    def before_step(self, optimizer: Any) -> None:
        rule: Any = self.rule or usual_rule(self.stage, optimizer)
        factor = scale_rate(rule, self.times)
        self.rates.scale(optimizer, factor)
        if not self._told:
            self._told = True
            self.stage.pulse.notice(f"learning rate × {factor:.4g} ({rule} rule)")
