"""Whether two tensors are equal up to rounding."""

from __future__ import annotations

from typing import Any

import torch

# Rounding of the same sum in another order, relative to the largest value.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
TIES = 1e-2  # fraction of integers (an argmax) that may differ by rounding


def close(a: Any, b: torch.Tensor, tolerance: float | None = None) -> bool:
    """Equal up to rounding; `tolerance` is relative to the largest value, and defaults to the data type's."""
    if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    if not a.is_floating_point() and not a.is_complex():
        return bool((a != b).double().mean() <= TIES)
    if tolerance is None:
        tolerance = TOLERANCE[torch.bfloat16] if _is_coarse(a) else TOLERANCE.get(a.dtype, 1e-3)
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    return bool((a - b).abs().max() <= tolerance * b.abs().max() + 1e-12)


def _is_coarse(tensor: torch.Tensor) -> bool:
    """Whether the tensor was computed in half precision or in TF32, whatever its own data type is."""
    return torch.is_autocast_enabled(tensor.device.type) or (tensor.is_cuda and torch.backends.cuda.matmul.allow_tf32)
