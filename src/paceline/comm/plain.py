"""Plain values as bytes: what workers tell each other. Reading them runs no code, whoever wrote them.

None, flags, numbers, texts, bytes, tensors, and lists and dicts of these. Tuples and sets arrive as lists.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

_TENSOR, _INTEGER = 1, 2  # extensions of msgpack
_SMALL = 1 << 63  # integers beyond it have no form of their own there


def encode(value: Any) -> bytes:
    """TypeError for what is not plain."""
    return _encoder.encode(_tame(value))


def decode(raw: bytes | memoryview) -> Any:
    """msgspec.DecodeError where these are no such bytes."""
    return _decoder.decode(raw)


def _tame(value: Any) -> Any:
    """Large integers anywhere in a value: msgspec asks no hook for them."""
    if isinstance(value, int) and not -_SMALL <= value < _SMALL:
        return msgspec.msgpack.Ext(_INTEGER, str(value).encode())
    if isinstance(value, (list, tuple, set)):
        return [_tame(item) for item in value]
    if isinstance(value, dict):
        return {key: _tame(item) for key, item in value.items()}
    return value


def _tensor_out(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise TypeError(f"A {type(value).__name__} is no plain value.")
    flat = value.detach().cpu().contiguous().view(-1)
    head = msgspec.msgpack.encode((str(value.dtype).removeprefix("torch."), tuple(value.shape)))
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return msgspec.msgpack.Ext(_TENSOR, len(head).to_bytes(2, "big") + head + raw)


def _extension_in(code: int, data: memoryview) -> Any:
    if code == _INTEGER:
        return int(bytes(data))
    if code != _TENSOR:
        raise ValueError(f"{code} is no extension of ours")
    size = int.from_bytes(data[:2], "big")
    name, shape = msgspec.msgpack.decode(data[2 : 2 + size], type=tuple[str, tuple[int, ...]])
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    raw = bytearray(data[2 + size :])
    return torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype)


_encoder = msgspec.msgpack.Encoder(enc_hook=_tensor_out)
_decoder = msgspec.msgpack.Decoder(ext_hook=_extension_in)
