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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.mods.support.recompute import Recomputed
from paceline.script.seams.stage import Stage
from paceline.torch_private import is_compiled

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Mod:
    """Replaces the blocks' `forward` during a training call only, so that a copied or saved model is unchanged."""

    def __init__(self, value: str) -> None:
        self._blocks: weakref.WeakKeyDictionary[nn.Module, list[nn.Module]] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[nn.Module, Recomputed] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if is_compiled(module):
            self.stage.pulse.notice(f"checkpointing: {type(module).__name__} is compiled, and stays unchanged.")
            return
        blocks = self._blocks[module] = repeated_blocks(module)
        if blocks:
            told = f"checkpointing: {len(blocks)} × {type(blocks[0]).__name__} of {type(module).__name__}"
        else:
            told = f"checkpointing: {type(module).__name__} has no repeated blocks, and stays unchanged"
        self.stage.pulse.notice(told)

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
        return lambda *args, **kwargs: recomputed(block, forward, args, kwargs)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated modules of a model: of one class, or the Sequentials of one container; empty if there are none."""
    kinds: dict[Any, list[nn.Module]] = defaultdict(list)
    for parent in model.modules():
        for child in parent.children():
            if next(child.children(), None) is None or next(child.parameters(), None) is None:
                continue
            if isinstance(child, torch.jit.ScriptModule):
                continue
            if not isinstance(child, CONTAINERS):
                kinds[type(child)].append(child)
            elif isinstance(child, nn.Sequential) and isinstance(parent, CONTAINERS):
                kinds[id(parent)].append(child)
    found = [_outermost(blocks) for blocks in kinds.values()]
    return max((blocks for blocks in found if len(blocks) > 1), key=_weight, default=[])


def _outermost(blocks: list[nn.Module]) -> list[nn.Module]:
    distinct = list(dict.fromkeys(blocks))
    inside = {id(inner) for block in distinct for inner in block.modules() if inner is not block}
    return [block for block in distinct if id(block) not in inside]


def _weight(blocks: list[nn.Module]) -> tuple[int, int]:
    """The number of weights, then the number of blocks: of two kinds with equal weights, the one with more and smaller
    blocks needs less memory."""
    return sum({p: p.numel() for block in blocks for p in block.parameters()}.values()), len(blocks)
