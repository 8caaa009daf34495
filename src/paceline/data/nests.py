"""Samples as bytes, and back: nests of arrays, tensors, numbers, texts and bytes. Runs no code of what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from paceline.errors import UsageError


def encode(sample: Any) -> bytes:
    """Raises UsageError for what is not a nest of these kinds."""
    return msgspec.msgpack.encode(_told(sample))


def decode(raw: bytes) -> Any:
    return _made(msgspec.msgpack.decode(raw))


def _told(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor) and value.dtype is not torch.bfloat16:
        return ["tensor", *_raw(value.detach().cpu().numpy())]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return ["array", *_raw(np.asarray(value))]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _told(item) for key, item in value.items()}]
    if type(value) in (tuple, list):
        return [type(value).__name__, [_told(item) for item in value]]
    raise UsageError(
        f"Asked to write a sample that holds a {type(value).__name__}.",
        advice="Samples on disk are nests (tuples, lists, dictionaries) of arrays, tensors, numbers, texts and bytes.",
    )


def _raw(array: np.ndarray[Any, Any]) -> list[Any]:
    return [array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]


def _made(told: Any) -> Any:
    if not isinstance(told, list):
        return told
    kind, *rest = told
    if kind in ("tensor", "array"):
        dtype, shape, raw = rest
        array = np.frombuffer(bytearray(raw), np.dtype(dtype)).reshape(shape)
        return torch.from_numpy(array) if kind == "tensor" else array
    if kind == "dict":
        return {key: _made(item) for key, item in rest[0].items()}
    items = [_made(item) for item in rest[0]]
    return tuple(items) if kind == "tuple" else items
