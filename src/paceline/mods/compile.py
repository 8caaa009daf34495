"""Compile: torch.compile for the model and, on a GPU, for the cross entropy of large outputs.

Changes: operations are fused, hence the last digits. Applies to most models; the first steps take long. The compiled
cross entropy over many classes reads the model's output once instead of six times; with `precision`, it reads the
half-precision original. Can break: models that torch.compile cannot trace, and throughput if shapes change at every
step; with `precision`, code that asks for the gradient of such an output after the loss was computed.

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

from paceline.mods import precision, prospects
from paceline.mods.graphs.promise import Promise
from paceline.script.seams.stage import Stage
from paceline.torch_private import compile_weight_gradients_as_cudnn, is_compiled


class Mod:
    """Compiles a model at its first call. A model that the script has compiled stays unchanged."""

    def __init__(self, value: str) -> None:
        self.mode = value
        self._compiled = self._met = False

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)
        if torch.cuda.is_available():
            F.cross_entropy = compiled_where_large(F.cross_entropy)

    def on_model(self, module: nn.Module) -> None:
        self._met = True
        if not is_compiled(module):
            self._compiled = True
            compile_weight_gradients_as_cudnn()
            module.compile(mode=None if self.mode == "default" else self.mode)

    def idle(self) -> str:
        return prospects.COMPILED if self._met and not self._compiled else ""


def compiled_where_large(
    plain: Callable[..., Any], compile: Callable[..., Any] = lambda loss: torch.compile(loss)
) -> Callable[..., Any]:
    """The loss, compiled if its input is large. For an input that `precision` converted to float32, the compiled loss
    reads the half-precision original."""

    def widening(narrow: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return plain(narrow.float(), *args, **kwargs)

    compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
    inside = False  # while torch compiles the loss, it calls F.cross_entropy, which is this function

    def cross_entropy(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if isinstance(input, Promise):
            return Promise.__torch_function__(cross_entropy, (Promise,), (input, *args), kwargs)
        if inside or torch.compiler.is_compiling() or not precision.is_large(input):
            return plain(input, *args, **kwargs)
        narrow = precision.original_of(input)
        loss, read = (plain, input) if narrow is None else (widening, narrow)
        if loss not in compiled:
            compiled[loss] = compile(loss)
        inside = True
        try:
            return compiled[loss](read, *args, **kwargs)
        finally:
            inside = False

    return cross_entropy
