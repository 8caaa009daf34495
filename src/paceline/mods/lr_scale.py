"""Learning-rate scale: scales the script's learning rate for a batch K times as large.

Changes: the mathematics: each step's rate is multiplied by K (linear) or its square root (sqrt). The default is linear
for SGD and LARS, and the square root for optimizers that normalise by gradient magnitude (Adam, LAMB). Applies to every
optimizer, during its step only: the script's scheduler is not affected. The mod `batch` scales the rate itself; this
mod is for batches that grow otherwise (`--batch scale`, `--emulate`), or with `batch=…:none`. Can break: accuracy. The
full scaled rate is too high for the first steps: add `warmup`.

By hand:

    optimizer = torch.optim.SGD(model.parameters(), lr=K * lr)
"""

from __future__ import annotations

from typing import Any

from paceline.converge.schedules import scale_rate
from paceline.mods.support.learning_rates import Rates, usual_rule
from paceline.script.seams.stage import Stage


class Mod:
    """Multiplies an optimizer's rates during its step."""

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
