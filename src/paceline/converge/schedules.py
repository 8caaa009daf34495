"""Learning rates for large batches: a rule that scales the rate, a warm-up to it, and a decay after it.

    linear   batch × k, rate × k: as many small steps as one large one, while the gradient stays much the same
    sqrt     batch × k, rate × √k: the noise of a step stays the same; the usual rule for Adam, LAMB and their kind

Scaled at once, the rate is too high for the first steps: it goes up in a line, step by step, from the script's own.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.errors import UsageError

Rule = Literal["linear", "sqrt"]
Decay = Literal["none", "cosine", "polynomial"]
RULES: dict[str, float] = {"linear": 1.0, "sqrt": 0.5}  # the power of k
DECAYS = ("none", "cosine", "polynomial")


def scale_rate(rule: Rule, k: float) -> float:
    """By how much the rate is multiplied where the batch is multiplied by k."""
    if rule not in RULES:
        raise UsageError(f"Asked to scale the rate by {rule!r}.", advice=f"One of: {', '.join(RULES)}")
    if not k > 0:
        raise UsageError(f"Asked for a batch multiplied by {k}.", advice="The multiple is above zero.")
    return float(k ** RULES[rule])


def factor(
    step: int,
    *,
    scale: float = 1.0,
    start: float = 1.0,
    warm_up: int = 0,
    steps: int = 0,
    decay: Decay = "none",
    power: float = 1.0,
    end: float = 0.0,
) -> float:
    """What the script's rate is multiplied by at this step, counted from 0: from `start` in a line to `scale` at step
    `warm_up`, then down to `end` × `scale` at step `steps`, where it stays."""
    if step < warm_up:
        return start + (scale - start) * step / warm_up
    if decay == "none":
        return scale
    way = min(1.0, (step - warm_up) / (steps - warm_up)) if steps > warm_up else 1.0
    left = 0.5 * (1.0 + math.cos(math.pi * way)) if decay == "cosine" else (1.0 - way) ** power
    return scale * (end + (1.0 - end) * left)


class ScaledRate(LRScheduler):
    """A torch scheduler for a batch that was multiplied by `batch`: step it once a step of the optimizer.

        schedule = paceline.ScaledRate(optimizer, batch=8, rule="linear", warm_up=500, steps=10_000, decay="cosine")

    The rates that the optimizer has when this is made are those of the small batch. They are multiplied by a number
    that depends on the step alone, so that a run that is resumed from the state_dict goes on exactly. `start` is where
    the warm-up begins, as a multiple of the small batch's rate (0: from nothing); `end` where the decay ends, as a part
    of the highest rate; `power` is the polynomial's.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        batch: float = 1.0,
        rule: Rule = "linear",
        warm_up: int = 0,
        steps: int = 0,
        decay: Decay = "none",
        start: float = 1.0,
        power: float = 1.0,
        end: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.settings: dict[str, Any] = {
            "scale": scale_rate(rule, batch),
            "start": start,
            "warm_up": warm_up,
            "steps": steps,
            "decay": decay,
            "power": power,
            "end": end,
        }
        _check(**self.settings)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        times = factor(max(0, self.last_epoch), **self.settings)
        return [base * times for base in self.base_lrs]

    _get_closed_form_lr = get_lr


def _check(*, warm_up: int, steps: int, decay: str, start: float, power: float, end: float, scale: float) -> None:
    if decay not in DECAYS:
        raise UsageError(f"Asked for the decay {decay!r}.", advice=f"One of: {', '.join(DECAYS)}")
    if warm_up < 0 or start < 0 or power < 0 or end < 0:
        raise UsageError(f"Asked for warm_up={warm_up}, start={start}, power={power}, end={end}: none is below zero.")
    if decay != "none" and steps <= warm_up:
        raise UsageError(
            f"Asked for a {decay} decay from step {warm_up} on that ends at step {steps}.",
            advice="Give `steps`, the number of steps of the whole run, warm-up included.",
        )
