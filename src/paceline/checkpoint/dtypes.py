"""How tensors of each dtype are stored in safetensors files, bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from paceline.errors import CheckpointError

STORED = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
REAL = {"complex128": "F64", "complex64": "F32", "complex32": "F16"}  # stored with a last dimension of 2


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of this name; None if this torch has none."""
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def refusal(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be stored, as a clause that follows its name; empty if it can."""
    if tensor.layout is not torch.strided:
        return f"is {str(tensor.layout).removeprefix('torch.').replace('_', ' ')}; only dense tensors are stored"
    if tensor.device.type == "meta":
        return "is on the meta device and has no numbers"
    return "is quantized; store its int_repr(), scale and zero point" if tensor.is_quantized else ""


def stored_form(tensor: torch.Tensor) -> tuple[str, list[int], Any]:
    """A whole tensor's safetensors dtype and shape, and its bytes. A dtype that safetensors lacks is stored as bytes,
    with the item size as the last dimension; checkpoint.json has the tensor's own dtype and shape."""
    kept = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    name, shape = name_of(kept.dtype), list(kept.shape)
    raw = kept.reshape(-1).view(torch.uint8).numpy() if kept.numel() else b""
    if name in STORED:
        return STORED[name], shape, raw
    if name in REAL:
        return REAL[name], [*shape, 2], raw
    return "U8", [*shape, kept.dtype.itemsize], raw


def empty_for(name: str, dtype: str, shape: list[int]) -> torch.Tensor:
    """Memory for a stored tensor. Raises CheckpointError if this torch does not know its dtype."""
    found = dtype_of(dtype)
    if found is None:
        raise CheckpointError(
            f"{name} has dtype {dtype}, which torch {torch.__version__} does not know.", advice="Use a newer torch."
        )
    return torch.empty(shape, dtype=found, device="cpu")
