"""LAMB or LARS behind another optimizer's object. For the mod `optimizer`.

The script's groups stay as they are, and each is two groups here: what is adapted, and what is neither adapted nor
decayed. Both read the script's settings anew at every step, so schedulers and whatever the script writes into its
groups go on to hold. The state is kept in the script's own optimizer: its state_dict saves and loads it.

Rates of different optimizers say different things: Adam moves each number by about its rate, LAMB each layer by that
part of its norm. So the rate is multiplied by what makes the first steps of each of the two parts as long as the
script's own optimizer would have made them (μ' = √(1 − μ²), for momentum):

    SGD ‖g‖ / μ'     Adam √n     LAMB ‖w‖, and √n where not adapted     LARS η‖w‖ / μ', and as SGD where not adapted

and layers move by no less than 5 and no more than 20 thousandths of their norm: a first gradient is a poor witness.
Where the number of steps of the whole run is known and small, they move by 3 norms over it, at the full rate: what was
best where that was tried.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch

from paceline.converge.optimizers.lamb import LAMB
from paceline.converge.optimizers.lars import LARS
from paceline.converge.optimizers.param_groups import no_decay
from paceline.mods.support.learning_rates import Rates
from paceline.script.seams.stage import Stage

NAMES: dict[str, Any] = {"lamb": LAMB, "lars": LARS}
LEAST, MOST = 0.005, 0.02  # of a layer's norm, by which it moves at a step: where these optimizers are known to work
TRAVEL, FURTHEST = 3.0, 0.2  # … and with so many steps in all, they can move by so many norms (at the full rate)
MOMENTUM = 0.9  # where the script has none
TIMES = "paceline_times"  # in the script's group, and so in its state_dict: what its rate is multiplied by, if adapted


class Redirected:
    """Makes the steps of one optimizer of the script's."""

    def __init__(self, optimizer: Any, name: str, rate: float | None, stage: Stage, *, steps: int = 0) -> None:
        self.name, self.rate, self.stage = name, rate, stage
        self.least = min(FURTHEST, max(LEAST, TRAVEL / steps)) if steps else LEAST
        self.other = _made(NAMES[name])
        self._parts: list[tuple[int, bool, list[Any]]] = []  # number of the script's group, adapted, parameters
        self._of: Any = None  # the parameters that they were made of

    def step(self, optimizer: Any, closure: Any) -> Any:
        """In the place of the script's step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._divide(optimizer)
        for number, adapted, parameters in self._parts:
            times = optimizer.param_groups[number].setdefault(TIMES, {})
            if adapted not in times and any(p.grad is not None for p in parameters):
                times[adapted] = self._match(optimizer, number, adapted, parameters)
        self.other.param_groups = [self._group(optimizer, *part) for part in self._parts]
        if self.other.state is not optimizer.state:  # it was loaded
            self.other.state, self.other._prepared = optimizer.state, {}
        plain = type(self.other).step
        if getattr(plain, "hooked", False):  # torch wraps it when one is constructed, and the seams are in there
            plain = plain.__wrapped__
        plain(self.other)
        if self.name == "lars" and "betas" in optimizer.defaults:
            for part in self._parts:  # Adam looks for it when a state is loaded
                for parameter in part[2]:
                    if parameter in optimizer.state:
                        optimizer.state[parameter].setdefault("step", torch.zeros(()))
        return loss

    def _divide(self, optimizer: Any) -> None:
        """Which parameters are adapted: by kind of module, as far as models were called; else by their dimensions."""
        of = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        if of == self._of:
            return
        exempt = {
            id(p)
            for root in self.stage.roots
            for group in no_decay(root)
            if not group["adapt"]
            for p in group["params"]
        }
        self._of, self._parts, self.other._prepared = of, [], {}
        for number, group in enumerate(optimizer.param_groups):
            for adapted in (True, False):
                own = [p for p in group["params"] if (p.dim() > 1 and id(p) not in exempt) == adapted]
                if own:
                    self._parts.append((number, adapted, own))

    def _group(self, optimizer: Any, number: int, adapted: bool, parameters: list[Any]) -> dict[str, Any]:
        given = optimizer.param_groups[number]
        group = {name: given[name] for name in self.other.defaults if name in given}
        if "momentum" in self.other.defaults and "betas" in given:
            group["momentum"] = given["betas"][0]
        if "betas" in self.other.defaults and "momentum" in given:
            group["betas"] = (given["momentum"] or MOMENTUM, 0.999)
        if not adapted:
            group["weight_decay"] = 0.0
        times = given.get(TIMES, {}).get(adapted, 1.0)
        group |= {"params": parameters, "adapt": adapted, "lr": given["lr"] * times}
        return self.other.defaults | group

    @torch.no_grad()
    def _match(self, optimizer: Any, number: int, adapted: bool, parameters: list[Any]) -> float:
        """What the rate of this part is multiplied by. Waits for the device, once."""
        group = optimizer.param_groups[number]
        rate = float(group.get("initial_lr", Rates.of(self.stage).own(optimizer, group)))
        if self.rate is not None and adapted:
            times = self.rate / rate if rate else 1.0
        else:
            times = self._fit(optimizer, number, adapted, [p for p in parameters if p.grad is not None], rate)
        if adapted and number == 0:
            self.stage.pulse.notice(
                f"{self.name.upper()} in the place of {type(optimizer).__name__}: its layers' rate is "
                f"{rate * times:.3g} where the script's is {rate:.3g}"
            )
        return times

    def _fit(self, optimizer: Any, number: int, adapted: bool, parameters: list[Any], rate: float) -> float:
        given, ours = optimizer.param_groups[number], self._group(optimizer, number, adapted, parameters)
        count = math.sqrt(sum(p.numel() for p in parameters))
        w, g = (math.hypot(*(float(t.norm()) for t in ts)) for ts in (parameters, [p.grad for p in parameters]))
        own = count if "betas" in given else g * _longer(given["momentum"])
        longer = _longer(ours.get("momentum", 0.0))
        if self.name == "lamb":
            theirs = w if adapted else count
        else:
            theirs = ours["trust"] * w * longer if adapted else g * longer
        if adapted and w > 0 and rate > 0:
            own = w / rate * max(self.least, min(MOST, rate * own / w))
        return own / theirs if own > 0 and theirs > 0 and math.isfinite(own / theirs) else 1.0


def _longer(momentum: float) -> float:
    """By how much momentum makes a step longer, where gradients are mostly noise."""
    return float(1.0 / math.sqrt(1.0 - momentum**2))


def _made(kind: Any) -> Any:
    """An optimizer that nobody hears of: a constructor would pass the seams that the script's own passes."""
    other = kind.__new__(kind)
    given = inspect.signature(kind.__init__).parameters.values()
    other.defaults = {one.name: one.default for one in given if one.default is not inspect.Parameter.empty}
    other.state, other.param_groups, other._prepared = {}, [], {}
    return other
