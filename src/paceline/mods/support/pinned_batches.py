"""Pinned tensors of a batch, whose copy to the GPU does not make the host wait. For the mod `loader`.

This is safe as long as no code writes to such a tensor after the copy has started: the copy may still be running.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from paceline.torch_private import OwnTensor, disabled_torch_function


class PinnedTensor(OwnTensor):
    """A tensor whose `to` and `cuda` are non-blocking by default. All results are plain tensors."""

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain().to(*args, **kwargs if len(args) > 1 else {"non_blocking": True} | kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain().cuda(*args, **kwargs if len(args) > 1 else {"non_blocking": True} | kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._plain(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def _plain(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)
