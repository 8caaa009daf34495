"""Samples as bytes, and back: nests of arrays, tensors, numbers, texts and bytes. Runs no code of what it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from paceline.data.size_limits import RECORD, too_large
from paceline.errors import DataError, UsageError

LONG = 1 << 20  # bytes of a record, from which on its values are counted before it is decoded
VALUE = 80  # bytes that a value takes in memory, about


def encode(sample: Any) -> bytes:
    """Raises UsageError for what is not a nest of these kinds."""
    return msgspec.msgpack.encode(_told(sample))


def decode(raw: bytes, *, max_bytes: int = RECORD) -> Any:
    """The sample; DataError for bytes that are none. `max_bytes`: refuses one that takes more memory."""
    try:
        if len(raw) > LONG:
            _check_size(raw, max_bytes)
        return _made(msgspec.msgpack.decode(raw))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        told = str(error) or type(error).__name__
        raise DataError(f"It is no sample: {told}.", advice="Use a decoder that matches the record type.") from None


def _check_size(raw: bytes, max_bytes: int) -> None:
    """An empty dictionary is one byte in a record and many in memory. Arrays, texts and bytes are as large as they are
    there, and are passed over."""
    at, end, need = 0, len(raw), len(raw)
    while at < end:
        if run := RUN.match(raw, at):
            need += VALUE * (run.end() - at)
            at = run.end()
        else:
            tag = raw[at]
            width, size = SIZES[tag]
            if width and tag not in NESTS:
                size += int.from_bytes(raw[at + 1 : at + 1 + width], "big")
            need += VALUE
            at += 1 + width + size
        if need > max_bytes:
            raise too_large("The sample, decoded,", need, max_bytes, "data.decode_sample(…, max_bytes={})", so_far=True)


def _sizes() -> list[tuple[int, int]]:
    """For each tag of msgpack: the bytes of the length that follows, and those of the value itself."""
    found = [(0, tag & 0x1F) if 0xA0 <= tag < 0xC0 else (0, 0) for tag in range(256)]
    for tags, width in (((0xC4, 0xD9), 1), ((0xC5, 0xDA, 0xDC, 0xDE), 2), ((0xC6, 0xDB, 0xDD, 0xDF), 4)):
        for tag in tags:
            found[tag] = width, 0
    for tag, width in ((0xC7, 1), (0xC8, 2), (0xC9, 4)):  # of a kind of their own, which is told in a byte more
        found[tag] = width, 1
    for first, sizes in ((0xCA, (4, 8)), (0xCC, (1, 2, 4, 8, 1, 2, 4, 8)), (0xD4, (2, 3, 5, 9, 17))):
        for tag, size in enumerate(sizes, first):
            found[tag] = 0, size
    return found


NESTS = (0xDC, 0xDD, 0xDE, 0xDF)  # whose length counts values
RUN = re.compile(rb"[\x00-\x9f\xc0-\xc3\xe0-\xff]+")  # of values that are told by their tags alone
SIZES = _sizes()


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
        name, shape, raw = rest
        dtype = np.dtype(name)
        if dtype.kind not in "biufc" or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"an array of type {name} and shape {shape}")
        array = np.frombuffer(bytearray(raw), dtype).reshape(shape)
        return torch.from_numpy(array) if kind == "tensor" else array
    if kind == "dict":
        return {key: _made(item) for key, item in rest[0].items()}
    if kind not in ("tuple", "list"):
        raise ValueError(f"a part of the unknown kind {kind!r}")
    items = [_made(item) for item in rest[0]]
    return tuple(items) if kind == "tuple" else items
