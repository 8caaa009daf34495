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

import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from paceline.converge.schedules import scale_rate
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


# -- rates of a script ------------------------------------------------------------------------------------------------
# All mods of a stage share one `Rates`, so that several mods can change a rate together and it is restored exactly. The
# script's scheduler only ever reads and writes the script's own rate.


@dataclass(slots=True)
class Changed:
    """One optimizer's rates during its step."""

    kept: list[tuple[dict[str, Any], Any]] = field(default_factory=list)  # group, the script's rate
    written: list[Any] = field(default_factory=list)  # the rates in the groups now
    scale: float = 1.0  # factor for the larger batch
    way: float = 1.0  # fraction of the warm-up that is done
    left: float = 1.0  # factor of the decay

    def factor(self, start: float | None) -> float:
        """The factor of the script's rate: linear from the unscaled rate (or zero) to the scaled one, times the
        decay."""
        begin = (1.0 if self.scale > 1.0 else 0.0) if start is None else start
        return (begin + (self.scale - begin) * self.way) * self.left


class Rates:
    """Get the instance with `Rates.of(stage)` before the mod subscribes: Rates must subscribe first."""

    _known: ClassVar[weakref.WeakKeyDictionary[Stage, Rates]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._now: dict[int, Changed] = {}
        self.grown = 1.0  # the batch as a multiple of the script's own
        self.start: float | None = None  # first factor of a warm-up; None: 1 if a mod scales the rate, else 0

    @classmethod
    def of(cls, stage: Stage) -> Rates:
        if stage not in cls._known:
            cls._known[stage] = rates = cls()
            stage.subscribe(rates)
        return cls._known[stage]

    def before_step(self, optimizer: Any) -> None:
        self.after_step(optimizer)  # restores the rates if the previous step raised

    def scale(self, optimizer: Any, factor: float) -> None:
        """Multiplies the rate of this step by `factor`."""
        self._changed(optimizer).scale *= factor
        self._write(optimizer)

    def warm(self, optimizer: Any, way: float) -> None:
        """Sets how much of the warm-up is done at this step, from 0 to 1 (the scaled rate)."""
        self._changed(optimizer).way = way
        self._write(optimizer)

    def decay(self, optimizer: Any, left: float) -> None:
        """Multiplies the rate of this step by the decay factor `left`."""
        self._changed(optimizer).left *= left
        self._write(optimizer)

    def own(self, optimizer: Any, group: dict[str, Any]) -> Any:
        """The script's rate of a group, even while a changed rate is in the group."""
        changed = self._now.get(id(optimizer), Changed())
        return next((rate for kept, rate in changed.kept if kept is group), group["lr"])

    def after_step(self, optimizer: Any) -> None:
        changed = self._now.pop(id(optimizer), None)
        if changed is None:
            return
        factor = changed.factor(self.start)
        for (group, rate), written in zip(changed.kept, changed.written, strict=True):
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:  # the step itself may have changed the rate (an optimizer with its own schedule)
                group["lr"] = rate if group["lr"] == written or not factor else group["lr"] / factor

    def _changed(self, optimizer: Any) -> Changed:
        if id(optimizer) not in self._now:
            changed = self._now[id(optimizer)] = Changed()
            met: set[int] = set()  # ids of rate tensors, which groups may share
            for group in optimizer.param_groups:
                rate = group.get("lr")
                if isinstance(rate, torch.Tensor) and id(rate) not in met:
                    met.add(id(rate))
                    changed.kept.append((group, rate.clone()))
                elif isinstance(rate, float | int):
                    changed.kept.append((group, rate))
            changed.written = [rate for _, rate in changed.kept]
        return self._now[id(optimizer)]

    def _write(self, optimizer: Any) -> None:
        changed = self._now[id(optimizer)]
        factor = changed.factor(self.start)
        for number, (group, rate) in enumerate(changed.kept):
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate * factor)  # in place: a CUDA graph may have captured the tensor
            else:
                changed.written[number] = group["lr"] = rate * factor


def usual_rule(stage: Stage, optimizer: Any) -> str:
    """The default rule that scales a rate with the batch: the square root for optimizers that normalise by gradient
    magnitude (Adam, LAMB), linear for all others."""
    for mod in stage.run.mods:
        if mod.startswith("optimizer="):
            return "sqrt" if "lamb" in mod else "linear"
    return "sqrt" if {"eps", "betas"} & set(optimizer.defaults) else "linear"
