"""Fused optimizer: one kernel updates all parameters.

Changes: the order of operations in an update, hence the last digits. Applies to Adam, AdamW, SGD and Adagrad over
floating-point parameters. Can break: nothing known; an optimizer without a fused version stays unchanged.

By hand:

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW

from paceline.mods import prospects
from paceline.script.seams.stage import Stage

FUSED = (Adam, AdamW, SGD, Adagrad)


class Mod:
    """Sets an optimizer's flag `fused` before its first step."""

    def __init__(self, value: str) -> None:
        self._fused = False
        self._others: set[str] = set()

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)

    def on_optimizer(self, optimizer: Any) -> None:
        if type(optimizer) not in FUSED or optimizer.defaults.get("differentiable"):
            self._others.add(type(optimizer).__name__)
            return
        self._fused = True
        for group in optimizer.param_groups:
            if all(isinstance(p, torch.Tensor) and p.is_floating_point() for p in group["params"]):
                group["fused"], group["foreach"] = True, False
        optimizer._step_supports_amp_scaling = True

    def idle(self) -> str:
        return "" if self._fused else prospects.no_fused(self._others)
