"""Checkpointing: the repeated blocks of a model keep only their inputs, and are recomputed in backward.

Changes: memory against time (about a third more time); gradients are exactly the same. The recomputation draws the same
random numbers and does not update running statistics again. Applies to models with repeated blocks (the layers of a
transformer, the blocks of a ResNet). The mod finds the blocks: among the composite modules that occur several times,
those that hold most of the weights. Can break: blocks that change their inputs in place; scripts that freeze weights
between forward and backward.

By hand:

    for block in self.blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn

from paceline.script.repeated_blocks import repeated_blocks
from paceline.script.seams.stage import Stage
from paceline.torch_private import BatchOrInstanceNorm, is_compiled


class Mod:
    """Replaces the blocks' `forward` during a training call only, so that a copied or saved model is unchanged."""

    def __init__(self, value: str) -> None:
        self._blocks: weakref.WeakKeyDictionary[nn.Module, list[nn.Module]] = weakref.WeakKeyDictionary()
        self._why = ""
        self._calls: weakref.WeakKeyDictionary[nn.Module, Recomputed] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if is_compiled(module):
            self._why = f"{type(module).__name__} is compiled."
            return
        blocks = self._blocks[module] = repeated_blocks(module)
        if blocks:
            told = f"checkpointing: {len(blocks)} × {type(blocks[0]).__name__} of {type(module).__name__}"
            self.stage.pulse.notice(told)
        else:
            self._why = f"{type(module).__name__} has no repeated blocks."

    def idle(self) -> str:
        return "" if any(self._blocks.values()) else self._why

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            blocks = self._blocks.get(module)
            if not blocks or not (torch.is_grad_enabled() and module.training):
                return plain(module, *args, **kwargs)
            with self._recomputed(blocks):
                return plain(module, *args, **kwargs)

        return call

    @contextmanager
    def _recomputed(self, blocks: list[nn.Module]) -> Iterator[None]:
        own = [(block, block.__dict__.get("forward"), block.forward) for block in blocks]
        for block, _, forward in own:
            block.__dict__["forward"] = self._wrap(block, forward)
        try:
            yield
        finally:
            for block, before, _ in own:
                if before is None:
                    block.__dict__.pop("forward", None)
                else:
                    block.__dict__["forward"] = before

    def _wrap(self, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        if block not in self._calls:
            self._calls[block] = Recomputed()
        recomputed = self._calls[block]

        def call(*args: Any, **kwargs: Any) -> Any:
            return recomputed(block, forward, args, kwargs)

        call.__wrapped__ = forward  # type: ignore[attr-defined]  # that a proof calls
        return call


# -- recomputing ------------------------------------------------------------------------------------------------------
# For the mods `accumulate` and `checkpointing`.
#
# The recomputation starts from the same state as the first call and leaves no side effects: random streams, training
# flags, attributes, and the buffers that a call changes (running statistics, counters).


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

    def before(self, module: nn.Module) -> Callable[[], None]:
        """A function that puts back what a call changes in the module, except the statistics of norms, which see one
        part of a batch after the other."""
        modules = list(module.modules())
        attributes, copies = [dict(module.__dict__) for module in modules], self._buffers(modules)
        own = {at: modules[at[0]]._buffers[at[1]] for at in copies}

        @torch.no_grad()
        def put_back() -> None:
            for module, was in zip(modules, attributes, strict=True):
                _put(module.__dict__, was)
            for (place, name), buffer in own.items():
                if buffer is not None and not isinstance(modules[place], BatchOrInstanceNorm):
                    modules[place]._buffers[name] = buffer.copy_(copies[place, name])

        return put_back

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
