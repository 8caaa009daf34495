"""Learning rates that mods change for the time of a step: multiplied before it, put back after it.

One for all mods of a stage, so that several that change a rate go together and it is put back exactly. A scheduler of
the script's reads and writes its own rate, and never notices.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from paceline.script.seams.stage import Stage


@dataclass(slots=True)
class Changed:
    """One optimizer's rates, while it steps."""

    kept: list[tuple[dict[str, Any], Any]] = field(default_factory=list)  # group, the script's rate
    written: list[Any] = field(default_factory=list)  # what stands there now
    scale: float = 1.0  # of the larger batch
    way: float = 1.0  # of the warm-up that is gone
    left: float = 1.0  # by a decay

    def factor(self, start: float | None) -> float:
        """What the script's rate is multiplied by: in a line from the unscaled rate (or nothing) to the scaled one."""
        begin = (1.0 if self.scale > 1.0 else 0.0) if start is None else start
        return (begin + (self.scale - begin) * self.way) * self.left


class Rates:
    """Get it by `Rates.of(stage)` before subscribing: it has to come before the mod that uses it."""

    _known: ClassVar[weakref.WeakKeyDictionary[Stage, Rates]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._now: dict[int, Changed] = {}
        self.grown = 1.0  # the batch, as a multiple of the script's own
        self.start: float | None = None  # of warm-ups; None: the unscaled rate, where a mod scales it

    @classmethod
    def of(cls, stage: Stage) -> Rates:
        if stage not in cls._known:
            cls._known[stage] = rates = cls()
            stage.subscribe(rates)
        return cls._known[stage]

    def before_step(self, optimizer: Any) -> None:
        self.after_step(optimizer)  # of a step that raised

    def scale(self, optimizer: Any, factor: float) -> None:
        """For this step the rate is times as high."""
        self._changed(optimizer).scale *= factor
        self._write(optimizer)

    def warm(self, optimizer: Any, way: float) -> None:
        """This step is so far on the way (0 to 1) to the scaled rate."""
        self._changed(optimizer).way = way
        self._write(optimizer)

    def decay(self, optimizer: Any, left: float) -> None:
        """So much is left of the rate at this step."""
        self._changed(optimizer).left *= left
        self._write(optimizer)

    def own(self, optimizer: Any, group: dict[str, Any]) -> Any:
        """The script's rate of a group, also while another one stands there."""
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
            else:  # an optimizer may have a schedule of its own
                group["lr"] = rate if group["lr"] == written or not factor else group["lr"] / factor

    def _changed(self, optimizer: Any) -> Changed:
        if id(optimizer) not in self._now:
            changed = self._now[id(optimizer)] = Changed()
            met: set[int] = set()  # tensors, which groups may share
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
                group["lr"].copy_(rate * factor)  # where it lies: a graph may have captured it
            else:
                changed.written[number] = group["lr"] = rate * factor


def usual_rule(stage: Stage, optimizer: Any) -> str:
    """The rule by which a rate follows the batch: the square root for optimizers that divide by the size of gradients
    (Adam, LAMB), linear for others."""
    for mod in stage.run.mods:
        if mod.startswith("optimizer="):
            return "sqrt" if "lamb" in mod else "linear"
    return "sqrt" if {"eps", "betas"} & set(optimizer.defaults) else "linear"
