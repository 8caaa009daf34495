"""Encodes the plain values that workers exchange as bytes. Decoding never runs code, even for hostile input.

Plain values are None, bool, numbers, str, bytes, tensors, and lists and dicts of these. Tuples and sets decode as
lists.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

_TENSOR, _INTEGER = 1, 2  # codes of our msgpack extensions
_INTEGER_LIMIT = 1 << 63  # integers outside ± this limit are sent as an extension


def encode(value: Any) -> bytes:
    """The value as bytes. Raises TypeError if the value is not plain."""
    return _encoder.encode(_wrap_large_integers(value))


def decode(raw: bytes | memoryview) -> Any:
    """The value that `encode` was given. Raises msgspec.DecodeError if the bytes are not valid."""
    return _decoder.decode(raw)


def _wrap_large_integers(value: Any) -> Any:
    """Replaces large integers anywhere in a value: msgspec does not call the encoder hook for integers."""
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        return msgspec.msgpack.Ext(_INTEGER, str(value).encode())
    if isinstance(value, (list, tuple, set)):
        return [_wrap_large_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: _wrap_large_integers(item) for key, item in value.items()}
    return value


def _encode_tensor(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise TypeError(f"Cannot send a {type(value).__name__} between workers: it is not a plain value.")
    flat = value.detach().cpu().contiguous().view(-1)
    head = msgspec.msgpack.encode((str(value.dtype).removeprefix("torch."), tuple(value.shape)))
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return msgspec.msgpack.Ext(_TENSOR, len(head).to_bytes(2, "big") + head + raw)


def _decode_extension(code: int, data: memoryview) -> Any:
    if code == _INTEGER:
        return int(bytes(data))
    if code != _TENSOR:
        raise ValueError(f"Unknown msgpack extension code {code}")
    size = int.from_bytes(data[:2], "big")
    name, shape = msgspec.msgpack.decode(data[2 : 2 + size], type=tuple[str, tuple[int, ...]])
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"Unknown torch dtype {name!r}")
    raw = bytearray(data[2 + size :])
    return torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype, device="cpu")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_tensor)
_decoder = msgspec.msgpack.Decoder(ext_hook=_decode_extension)
