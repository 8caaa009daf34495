"""Finds the repeated blocks of a model: the layers of a transformer, the blocks of a ResNet."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from paceline.torch_private import parameters_in

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated modules of a model: of one class, or the Sequentials of one container; empty if there are none."""
    kinds: dict[Any, list[nn.Module]] = defaultdict(list)
    for parent in model.modules():
        for child in parent.children():
            if next(child.children(), None) is None or next(parameters_in(child), None) is None:
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
    return sum({p: p.numel() for block in blocks for p in parameters_in(block)}.values()), len(blocks)
