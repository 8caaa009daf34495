"""Precision: the model's forward under autocast, with outputs converted back to float32.

Changes: products and convolutions are computed in bfloat16 (8 bits) or float16 (11 bits, of a smaller range); the other
ops, the loss, the weights and their updates stay float32. With fp16, gradients are scaled during backward and unscaled
when backward returns; a step whose gradients are infinite at that scale is skipped. Applies to devices that are fast in
this type: bfloat16 from Ampere on, float16 also on older GPUs. Can break: code that reads dtypes inside the model; with
fp16, code that reads gradients of non-leaf tensors (they are scaled), optimizers with a closure (refused), and clipping
by value, which hides an infinite gradient.

By hand:

    with torch.autocast(device.type, torch.bfloat16):
        output = model(images)
    output = output.float()

    # with torch.float16:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.mods import prospects
from paceline.mods.support import fp32_outputs
from paceline.mods.support.grad_scaler import Scaler
from paceline.script import tree
from paceline.script.seams.stage import Stage
from paceline.torch_private import parameters_in

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Mod:
    """Wraps the outermost call of every model. The script's own autocast inside the model stays in force."""

    def __init__(self, value: str) -> None:
        self.dtype = DTYPES[value]
        self._cast = self._own = False  # calls that the mod has cast, calls under the script's own autocast

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        self.scaler = Scaler(stage) if self.dtype is torch.float16 else None
        self.widen = fp32_outputs.widen if fp32_outputs.are_read(stage.run.mods) else torch.Tensor.float

    def on_model(self, module: nn.Module) -> None:
        if self.scaler is not None and any(parameter.device.type == "cpu" for parameter in parameters_in(module)):
            self.stage.pulse.notice("precision=fp16: float16 is slow on a CPU; precision=bf16 may be faster.")

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            first = next(parameters_in(module), None)
            device = "cpu" if first is None else first.device.type
            if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is self.dtype:
                self._own = True
                return plain(module, *args, **kwargs)
            self._cast = True
            if self.scaler is not None and torch.is_grad_enabled():
                self.scaler.meet_inputs((args, kwargs))
            with torch.autocast(device, self.dtype):
                output = plain(module, *args, **kwargs)
            return tree.replace(output, self._to_float)

        return call

    def idle(self) -> str:
        return prospects.AUTOCAST if self._own and not self._cast else ""

    def _to_float(self, leaf: Any) -> Any:
        half = isinstance(leaf, torch.Tensor) and leaf.dtype in DTYPES.values()
        return self.widen(leaf) if half else leaf
