"""Compile: the model as torch.compile makes it.

Changes: operations are fused, hence the last digits. Applies to most models; the first steps take long. Can break:
models that torch.compile cannot trace, and speed where shapes change at every step.

By hand:

    model.compile(mode="default")
"""

from __future__ import annotations

from torch import nn

from paceline.script.stage import Stage


class Mod:
    """Compiles a model at its first call. One that the script has compiled is left alone."""

    def __init__(self, value: str) -> None:
        self.mode = value

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if module._compiled_call_impl is None and not hasattr(module, "_orig_mod"):
            module.compile(mode=None if self.mode == "default" else self.mode)
