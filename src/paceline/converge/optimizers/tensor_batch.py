"""Tensors that an optimizer updates together."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class TensorBatch:
    """Tensors of one group that step together: of the same device, dtype and sharding."""

    numbers: list[int] = field(default_factory=list)  # indices among the group's parameters that have gradients
    parameters: list[Tensor] = field(default_factory=list)  # this worker's shard of each
    grads: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    treatment: list[int] = field(default_factory=list)  # bits: ADAPTED, DECAYED
    mesh: Any = None  # of DTensors; `sharded` lists its dimensions over which the tensors are sharded
    sharded: tuple[int, ...] = ()

    def state(self, name: str) -> list[Tensor]:
        return [local(state[name]) for state in self.states]

    def treated(self, bit: int, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor for tensor, bits in zip(tensors, self.treatment, strict=True) if bits & bit]


def local(tensor: Any) -> Tensor:
    """This worker's shard of a tensor, as real numbers."""
    own: Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor
    return torch.view_as_real(own) if own.is_complex() else own


def is_dtensor(tensor: Any) -> bool:
    # Importing DTensor takes long, and code that has a DTensor has imported it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
