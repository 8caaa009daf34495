"""Recomputes a module in backward instead of keeping its activations. For the mods `accumulate` and `checkpointing`.

The recomputation starts from the same state as the first call and leaves no side effects: random streams, training
flags, attributes, and the buffers that a call changes (running statistics, counters).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn

from paceline.torch_private import BatchOrInstanceNorm

Buffers = dict[tuple[int, str], torch.Tensor]  # by the module's index and the buffer's name


class Recomputed:
    """The calls of one module. The first call shows which buffers a call changes."""

    def __init__(self) -> None:
        self._moving: set[tuple[int, str]] | None = None

    def __call__(self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls `run(*args, **kwargs)`, and keeps only arguments and outputs until backward."""
        modules = list(module.modules())
        before = self._buffers(modules)
        attributes = [dict(module.__dict__) for module in modules]
        numbers = random.getstate(), np.random.get_state()

        calls = count()

        def compute(args: Any, kwargs: Any) -> Any:
            with _as_before(modules, attributes, before, numbers) if next(calls) else nullcontext():
                return run(*args, **kwargs)

        # Called as an attribute of torch, where the stage has patched it to split the work as in the first call.
        output = torch.utils.checkpoint.checkpoint(compute, args, kwargs, use_reentrant=False)
        if self._moving is None:
            self._moving = {at for at, was in before.items() if not _stays(modules[at[0]], at[1], was)}
        for at in before.keys() - self._moving:
            del before[at]
        return output

    def _buffers(self, modules: list[nn.Module]) -> Buffers:
        """Copies of the buffers that a call may change."""
        return {
            (place, name): buffer.detach().clone()
            for place, module in enumerate(modules)
            for name, buffer in module._buffers.items()
            if buffer is not None and (self._moving is None or (place, name) in self._moving)
        }


def _stays(module: nn.Module, name: str, was: torch.Tensor) -> bool:
    buffer = module._buffers.get(name)
    return not isinstance(module, BatchOrInstanceNorm) and buffer is not None and torch.equal(buffer, was)


@contextmanager
def _as_before(
    modules: list[nn.Module], attributes: list[dict[str, Any]], before: Buffers, numbers: Any
) -> Iterator[None]:
    """Restores the modules' state before the first call, during the block. torch's checkpoint restores torch's own
    random streams."""
    now = [dict(module.__dict__) for module in modules]
    streams = random.getstate(), np.random.get_state()
    for place, (module, was) in enumerate(zip(modules, attributes, strict=True)):
        _put(module.__dict__, was)
        copies = {name: before[place, name].clone() for name in module._buffers if (place, name) in before}
        if copies:
            module.__dict__["_buffers"] = module._buffers | copies
    random.setstate(numbers[0])
    np.random.set_state(numbers[1])
    try:
        yield
    finally:
        for module, is_now in zip(modules, now, strict=True):
            _put(module.__dict__, is_now)
        random.setstate(streams[0])
        np.random.set_state(streams[1])


def _put(attributes: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Makes only the necessary changes: torch.compile guards on attributes."""
    for name in attributes.keys() - wanted.keys():
        del attributes[name]
    for name, value in wanted.items():
        if attributes.get(name, attributes) is not value:
            attributes[name] = value
