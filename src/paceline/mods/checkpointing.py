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

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.mods.support.recompute import Recomputed
from paceline.script.repeated_blocks import repeated_blocks
from paceline.script.seams.stage import Stage
from paceline.torch_private import is_compiled


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
