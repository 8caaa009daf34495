"""Whole tensors and the parts that a worker keeps, under any strategy.

A checkpoint holds whole logical tensors, so that it fits every strategy. A strategy that splits tensors in its own way
gives the whole one by `full(tensor)`, and takes it apart by a method `part(whole, like)`, if it has one: what this
worker keeps of a tensor. Other tensors are whole already, or DTensors, which say themselves how they are split.
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.imports import after_import
from paceline.script.seams.api import current
from paceline.script.seams.stage import Stage
from paceline.torch_private import is_dtensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole logical tensor. Every worker calls it, for the same tensors in the same order, because a strategy may
    gather the parts; a lost peer raises there. A tensor that is whole already is returned as it is."""
    stage = current()
    if stage is not None and not stage.aside:
        tensor = stage.strategy.full(tensor)
    gathered: torch.Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def part(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse: what this worker keeps of a whole tensor, split like `like`. Every worker calls it, with the same
    values in the same order."""
    stage = current()
    if stage is not None and (keeps := getattr(stage.strategy, "part", None)) is not None:
        value = keeps(value, like)
    if not is_dtensor(like) or is_dtensor(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    placed: Any = like
    value = value.to(placed.to_local().device)
    # Every worker holds the same values: nothing has to be sent.
    return distribute_tensor(value, placed.device_mesh, placed.placements, src_data_rank=None)


def save_whole(stage: Stage) -> None:
    """From now on safetensors, which reads the memory of tensors, gets whole ones."""

    def patch(safetensors: Any) -> None:
        for name in ("save_file", "save"):
            plain = getattr(safetensors, name)
            setattr(safetensors, name, lambda tensors, *a, _plain=plain, **k: _plain(stage.whole(tensors), *a, **k))

    after_import("safetensors.torch", patch)


def strategy_name() -> str:
    """The name of the strategy of this process; "none" without Paceline."""
    stage = current()
    return "none" if stage is None or stage.aside else stage.strategy.name
