"""Builds sparse tensors without torch's invariant check, and without torch's warning about the missing check."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def sparse(
    places: torch.Tensor, values: torch.Tensor, shape: torch.Size, device: torch.device | None = None
) -> torch.Tensor:
    """A sparse COO tensor of `values` at the indices `places`. The default device is the device of `values`. The caller
    guarantees that indices and shape are valid."""
    with as_it_is():
        return torch.sparse_coo_tensor(places, values, shape, device=device, check_invariants=False)


def as_it_is() -> AbstractContextManager[Any]:
    """Sets the process-wide invariant check of sparse tensors explicitly to its current value. Without an explicit
    process-wide setting torch 2.11 warns, even if the call itself passes `check_invariants`."""
    setting = torch.sparse.check_sparse_tensor_invariants
    return setting(setting.is_enabled())
