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


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory, as bytes: gathers and broadcasts treat all dtypes alike."""
    host = tensor.detach().to("cpu").contiguous()
    return host.as_strided((host.numel(),), (1,)).view(torch.uint8)  # a dimension of size 1 may have any stride


def summable(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The tensor in host memory, contiguous, and whether the result is a copy. float16 and bfloat16 are summed in
    float32: the sum is more exact, and Gloo cannot sum these dtypes."""
    is_half = tensor.dtype in (torch.float16, torch.bfloat16)
    if tensor.is_cuda or is_half or not tensor.is_contiguous():
        return tensor.detach().to("cpu", torch.float32 if is_half else tensor.dtype).contiguous(), True
    return tensor.detach(), False


def copy_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(host)
