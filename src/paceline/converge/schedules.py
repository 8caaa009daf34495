"""Learning rates for large batches: a rule that scales the rate, a warm-up to it, and a decay after it.

    linear   batch × k, rate × k: one large step replaces k small ones, if the gradient changes little between them
    sqrt     batch × k, rate × √k: the noise of a step stays the same; the usual rule for Adam, LAMB and similar ones

The full scaled rate is too high for the first steps, so the warm-up raises it linearly from the script's own rate.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.errors import UsageError

Rule = Literal["linear", "sqrt"]
Decay = Literal["none", "cosine", "polynomial"]
RULES: dict[str, float] = {"linear": 1.0, "sqrt": 0.5}  # exponent of k
DECAYS = ("none", "cosine", "polynomial")


def scale_rate(rule: Rule, k: float) -> float:
    """The factor for the learning rate if the batch is multiplied by k."""
    if rule not in RULES:
        raise UsageError(f"The learning-rate rule {rule!r} does not exist.", advice=f"One of: {', '.join(RULES)}")
    if not k > 0:
        raise UsageError(f"The batch multiple {k} is not valid.", advice="Give a number above zero.")
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
    """The factor for the script's rate at this step, counted from 0: rises linearly from `start` to `scale` at step
    `warm_up`, then falls to `end` × `scale` at step `steps`, and stays there."""
    if step < warm_up:
        return start + (scale - start) * step / warm_up
    if decay == "none":
        return scale
    way = min(1.0, (step - warm_up) / (steps - warm_up)) if steps > warm_up else 1.0
    left = 0.5 * (1.0 + math.cos(math.pi * way)) if decay == "cosine" else (1.0 - way) ** power
    return scale * (end + (1.0 - end) * left)


class ScaledRate(LRScheduler):
    """A torch scheduler for a batch that was multiplied by `batch`: call `step` after each optimizer step.

        schedule = paceline.ScaledRate(optimizer, batch=8, rule="linear", warm_up=500, steps=10_000, decay="cosine")

    The optimizer's rates at construction are those of the small batch. They are multiplied by a factor that depends on
    the step only, so that a run resumed from the state_dict continues exactly. `start` is the beginning of the warm-up,
    as a multiple of the small batch's rate (0: from zero); `end` is the end of the decay, as a fraction of the highest
    rate; `power` is the exponent of the polynomial decay.
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
        raise UsageError(f"The decay {decay!r} does not exist.", advice=f"One of: {', '.join(DECAYS)}")
    if warm_up < 0 or start < 0 or power < 0 or end < 0:
        raise UsageError(f"A setting is negative: warm_up={warm_up}, start={start}, power={power}, end={end}.")
    if decay != "none" and steps <= warm_up:
        raise UsageError(
            f"The {decay} decay ends at step {steps}, and must end after the warm-up (step {warm_up}).",
            advice="Give `steps`, the number of steps of the whole run, warm-up included.",
        )
