"""Compile: the model as torch.compile makes it, and on a GPU the cross entropy of large outputs.

Changes: operations are fused, hence the last digits. Applies to most models; the first steps take long. A loss over
many classes is as large as the model's output and, in one kernel, is read once instead of six times. Can break: models
that torch.compile cannot trace, and speed where shapes change at every step.

By hand:

    model.compile(mode="default")
    cross_entropy = torch.compile(F.cross_entropy)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from paceline.script.stage import Stage

LARGE = 1 << 24  # elements of a loss's input: below that, a kernel more or less is no matter


class Mod:
    """Compiles a model at its first call. One that the script has compiled is left alone."""

    def __init__(self, value: str) -> None:
        self.mode = value

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)
        if torch.cuda.is_available():
            F.cross_entropy = _compiled_where_large(F.cross_entropy)

    def on_model(self, module: nn.Module) -> None:
        if module._compiled_call_impl is None and not hasattr(module, "_orig_mod"):
            module.compile(mode=None if self.mode == "default" else self.mode)


def _compiled_where_large(plain: Callable[..., Any]) -> Callable[..., Any]:
    compiled: list[Callable[..., Any]] = []

    def cross_entropy(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not input.is_cuda or input.numel() < LARGE:
            return plain(input, *args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(plain))
        return compiled[0](input, *args, **kwargs)

    return cross_entropy
