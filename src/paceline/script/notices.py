"""Notices, at a model's first call, about numbers that differ from one process although the run goes on."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.script.seams.stage import Stage

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Notices:
    """A listener that looks at each model."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def on_model(self, module: nn.Module) -> None:
        if self.stage.aside or self.stage.group.world == 1:
            return
        norms = any(isinstance(m, _BatchNorm) and m.training for m in module.modules())
        if norms and not self.stage.run.sync_bn:
            self.stage.pulse.notice(
                "Batch norm sees each worker's slice, as under DDP, so numbers differ from one process. "
                "For the same numbers: --sync-bn"
            )
        for name, m in module.named_modules():
            if any(_is_the_scripts(hook) for kind in HOOKS for hook in getattr(m, kind).values()):
                self.stage.pulse.notice(
                    f"The hooks on {name or type(module).__name__} see the values of their own worker: the rows of its "
                    "slice, and gradients times the number of workers."
                )
                return


def _is_the_scripts(hook: Any) -> bool:
    return not str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")
