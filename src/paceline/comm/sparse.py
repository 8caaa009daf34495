"""Sparse tensors made of parts that are known to fit: without a check, and without torch's word about that."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def sparse(
    places: torch.Tensor, values: torch.Tensor, shape: torch.Size, device: torch.device | None = None
) -> torch.Tensor:
    """Those values at those places, on a device: the values' own, unless another is given."""
    with as_it_is():
        return torch.sparse_coo_tensor(places, values, shape, device=device, check_invariants=False)


def as_it_is() -> AbstractContextManager[Any]:
    """Inside, whether sparse tensors are checked is what it was before, but said aloud: torch 2.11 warns where nobody
    said it for the whole process, even if a call says it for itself."""
    asked = torch.sparse.check_sparse_tensor_invariants
    return asked(asked.is_enabled())
