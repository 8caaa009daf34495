"""Precision: the model's forward under autocast, and its outputs in float32 again.

Changes: products and convolutions are computed in bfloat16 (8 bits); the rest, the loss, the weights and their updates
stay float32. Applies where the device has a fast bfloat16. Can break: code that looks at inner dtypes.

By hand:

    with torch.autocast(device.type, torch.bfloat16):
        output = model(images)
    output = output.float()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.script import tree
from paceline.script.stage import Stage

DTYPES = {"bf16": torch.bfloat16}


class Mod:
    """Wraps the outermost call of every model. What the script's own autocast does inside is left alone."""

    def __init__(self, value: str) -> None:
        self.dtype = DTYPES[value]

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            first = next(module.parameters(), None)
            with torch.autocast("cpu" if first is None else first.device.type, self.dtype):
                output = plain(module, *args, **kwargs)
            return tree.replace(output, _to_float)

        return call


def _to_float(leaf: Any) -> Any:
    half = isinstance(leaf, torch.Tensor) and leaf.dtype in DTYPES.values()
    return leaf.float() if half else leaf
