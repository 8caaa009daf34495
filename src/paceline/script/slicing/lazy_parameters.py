"""Lazy parameters, which get their shapes at a module's first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.torch_private import parameters_in


def has_lazy(module: nn.Module) -> bool:
    """Whether the module's next call makes parameters. It runs whole: their values come from the script's random
    stream, between the numbers that the call itself draws."""
    return any(map(is_lazy, parameters_in(module)))


def initialise_lazy(plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> None:
    """Initialises lazy parameters with a call of its own, where a strategy must divide them before the call: their
    shapes, and their values from the script's random stream."""
    if has_lazy(module):
        flags = [(m, m.training) for m in module.modules()]
        buffers = [(b, b.clone()) for b in module.buffers() if not is_lazy(b)]
        module.eval()
        with torch.no_grad():
            plain(module, *args, **kwargs)
            for buffer, kept in buffers:  # the call itself is still to come
                buffer.copy_(kept)
        for m, training in flags:
            m.training = training
