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

import inspect
import math
import types
import weakref
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from paceline.converge.optimizers.lamb import LAMB
from paceline.converge.optimizers.lars import LARS
from paceline.converge.optimizers.layerwise import refuse_float16
from paceline.converge.optimizers.param_groups import no_decay
from paceline.errors import ScriptError, UsageError
from paceline.mods.lr_scale import Rates
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


# -- steps by LAMB or LARS --------------------------------------------------------------------------------------------
# For the mods `optimizer` and `large_batch`.
#
# The script's groups stay unchanged. Here each becomes two groups: adapted parameters, and parameters that are neither
# adapted nor decayed. Both read the script's settings at every step, so that schedulers and the script's changes of its
# groups have their effect. The state is in the script's own optimizer, whose state_dict saves and loads it.
#
# Learning rates of different optimizers mean different things: Adam moves each number by about its rate, LAMB moves
# each layer by its rate times the layer's norm. So each part's rate is multiplied by a factor that makes its first
# steps as long as those of the script's own optimizer. Step lengths per unit of rate (μ' = √(1 − μ²), for momentum):
#
#     SGD ‖g‖ / μ'     Adam √n     LAMB ‖w‖, not adapted √n     LARS η‖w‖ / μ', not adapted as SGD
#
# The first gradient is a poor estimate, so a layer moves by at least 0.005 and at most 0.02 of its norm per step. If
# the number of steps of the whole run is known and small, a layer moves by 3 norms over the run at the full rate, which
# was best in our measurements (docs/converge.md).


NAMES: dict[str, Any] = {"lamb": LAMB, "lars": LARS}
LEAST, MOST = 0.005, 0.02  # range of a layer's movement per step, relative to its norm, in which LAMB and LARS work
TRAVEL, FURTHEST = 3.0, 0.2  # norms that a layer moves over a run of known length, and its most per step
MOMENTUM = 0.9  # if the script has none
TIMES = "paceline_times"  # key in the script's group, hence in its state_dict: factors of the rate, by `adapted`


class Redirected:
    """Makes the steps of one of the script's optimizers."""

    def __init__(self, optimizer: Any, name: str, rate: float | None, stage: Stage, *, steps: int = 0) -> None:
        self.name, self.rate, self.stage = name, rate, stage
        self.least = min(FURTHEST, max(LEAST, TRAVEL / steps)) if steps else LEAST
        self.other = _made(NAMES[name])
        self._parts: list[tuple[int, bool, list[Any]]] = []  # number of the script's group, adapted, parameters
        self._of: Any = None  # ids of the parameters in `_parts`, by group

    def step(self, optimizer: Any, closure: Any) -> Any:
        """Replaces the script's step."""
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
        if self.other.state is not optimizer.state:  # the script has loaded a state
            self.other.state, self.other._prepared = optimizer.state, {}
        plain = type(self.other).step
        if getattr(plain, "hooked", False):  # torch has wrapped the step, and the wrapper would fire the seams again
            plain = plain.__wrapped__
        plain(self.other)
        if self.name == "lars" and "betas" in optimizer.defaults:
            for part in self._parts:  # Adam requires "step" when it loads a state
                for parameter in part[2]:
                    if parameter in optimizer.state:
                        optimizer.state[parameter].setdefault("step", torch.zeros((), device="cpu"))
        return loss

    def _divide(self, optimizer: Any) -> None:
        """Decides which parameters are adapted: by type of module if the model was called, else by their dimensions."""
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
        """The factor of this part's rate. Waits for the device, once."""
        group = optimizer.param_groups[number]
        rate = float(group.get("initial_lr", Rates.of(self.stage).own(optimizer, group)))
        if self.rate is not None and adapted:
            times = self.rate / rate if rate else 1.0
        else:
            times = self._fit(optimizer, number, adapted, [p for p in parameters if p.grad is not None], rate)
        if adapted and number == 0:
            self.stage.pulse.notice(
                f"{self.name.upper()} replaces {type(optimizer).__name__}: the layers' learning rate is "
                f"{rate * times:.3g}, the script's is {rate:.3g}"
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
    """The factor by which momentum lengthens a step, if gradients are mostly noise."""
    return float(1.0 / math.sqrt(1.0 - momentum**2))


def _made(kind: Any) -> Any:
    """An optimizer without `__init__`, so that the seam `on_optimizer` does not fire."""
    other = kind.__new__(kind)
    given = inspect.signature(kind.__init__).parameters.values()
    other.defaults = {one.name: one.default for one in given if one.default is not inspect.Parameter.empty}
    other.state, other.param_groups, other._prepared = {}, [], {}
    return other
