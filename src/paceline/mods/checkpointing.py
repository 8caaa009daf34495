"""Checkpointing: the repeated blocks of a model keep their inputs only, and are computed again in backward.

Changes: memory for time (about a third more of it); gradients are exactly the same. Random numbers are the same the
second time, and running statistics are not updated twice. Applies to models with repeated blocks (the layers of a
transformer, the blocks of a ResNet), which are found: of the modules made of others that occur several times, those
that hold most of the weights. Can break: blocks that change what they were given; scripts that freeze weights between
forward and backward.

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

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Mod:
    """Blocks are other ones during a training call only: whoever copies or saves a model finds nothing in it."""

    def __init__(self, value: str) -> None:
        self._blocks: weakref.WeakKeyDictionary[nn.Module, list[nn.Module]] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[nn.Module, Recomputed] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
            self.stage.pulse.notice(f"{type(module).__name__} is compiled: checkpointing leaves it alone.")
            return
        blocks = self._blocks[module] = repeated_blocks(module)
        if blocks:
            told = f"checkpointing: {len(blocks)} × {type(blocks[0]).__name__} of {type(module).__name__}"
        else:
            told = f"checkpointing: {type(module).__name__} has no repeated blocks, and is left as it is"
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
    """The modules that a model is a repetition of: of one class, or the Sequentials of one list; empty: none."""
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
    """Their weights; where two kinds hold the same, the smaller blocks need less memory."""
    return sum({p: p.numel() for block in blocks for p in block.parameters()}.values()), len(blocks)
