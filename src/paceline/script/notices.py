"""Notices, at a model's first call, about numbers that differ from one process although the run goes on."""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.script.seams.stage import Stage

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Notices:
    """A listener that looks at each model."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def on_model(self, module: nn.Module) -> None:
        if self.stage.aside or self.stage.group.world == 1:
            return
        for name, m in module.named_modules():
            if any(_is_the_scripts(hook) for kind in HOOKS for hook in getattr(m, kind).values()):
                self.stage.pulse.notice(
                    f"The hooks on {name or type(module).__name__} see the values of their own worker: the rows of its "
                    "slice, and gradients times the number of workers."
                )
                return


def _is_the_scripts(hook: Any) -> bool:
    return not str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")
