"""Tensors of a batch that a loader has pinned: copying one to the GPU does not make the host wait. Safe as long as
nobody writes to them after that, since the copy may still be under way. For the mod `loader`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


class PinnedTensor(torch.Tensor):
    """In all else it is a tensor, and so is all that comes of it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

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
