"""Notices, at a model's first call, about numbers that differ from one process although the run goes on."""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.script.proof.backward_hooks import hooked, is_the_scripts
from paceline.script.seams.stage import Stage

HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # those on the backward see the whole batch: `backward_hooks`


class Notices:
    """A listener that looks at each model."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._told: set[Any] = set()  # code of hooks

    def on_model(self, module: nn.Module) -> None:
        if self.stage.aside or self.stage.group.world == 1 or hooked(module) is not None:
            return
        for name, m in module.named_modules():
            hooks = [hook for kind in HOOKS for hook in getattr(m, kind).values() if is_the_scripts(hook)]
            if codes := {getattr(hook, "__code__", type(hook)) for hook in hooks} - self._told:
                self._told |= codes
                self.stage.pulse.notice(
                    f"The hooks on {name or type(module).__name__} see the values of their own worker: the rows of its "
                    "slice."
                )
                return
