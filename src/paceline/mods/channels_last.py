"""Channels last: images and convolution weights in memory format channels_last.

Changes: the order of summation in a convolution, hence the last digits. Applies to models with 2-d convolutions.
Can break: code that calls `.view` on an image (`.reshape` and `.flatten` work), and throughput if most of the model is
not convolutions.

By hand:

    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.mods import prospects
from paceline.script import tree
from paceline.script.seams.stage import Stage


class Mod:
    """Converts a model at its first call, and its 4-d inputs at every call."""

    def __init__(self, value: str) -> None:
        self._converted = False

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if any(isinstance(child, nn.Conv2d | nn.ConvTranspose2d) for child in module.modules()):
            self._converted = True
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def idle(self) -> str:
        return "" if self._converted else prospects.NO_CONVOLUTION

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree.replace((args, kwargs), _channels_last)
            return plain(module, *args, **kwargs)

        return call


def _channels_last(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dim() == 4 and leaf.is_floating_point():
        return leaf.contiguous(memory_format=torch.channels_last)
    return leaf
