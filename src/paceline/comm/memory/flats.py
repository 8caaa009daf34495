"""Tensors of any shape as the flat ones that the engine works on, and back."""

from __future__ import annotations

import torch


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers in a row: the tensor's own memory where that is in a row already."""
    tensor = tensor.detach()
    return tensor.view(-1) if tensor.is_contiguous() else tensor.contiguous().view(-1)


def write_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Writes them back, where they were copied."""
    if not tensor.is_contiguous():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))


def bytes_of(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)
