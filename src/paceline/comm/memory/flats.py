"""Converts tensors to the flat tensors of the engine, and back."""

from __future__ import annotations

import torch


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of the tensor; a copy if the tensor is not contiguous."""
    tensor = tensor.detach()
    return tensor.view(-1) if tensor.is_contiguous() else tensor.contiguous().view(-1)


def write_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copies `flat` back into the tensor, if `flat_of` made a copy."""
    if not tensor.is_contiguous():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))


def bytes_of(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)
