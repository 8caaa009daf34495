"""Reads and writes `tf.train.Example` without TensorFlow: a dictionary of lists of bytes, floats or integers.

In the wire format of protocol buffers: Example 1: Features 1: { 1: name, 2: Feature }; a Feature has 1: a list of
bytes, 2: a list of floats, or 3: a list of integers, packed or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from paceline.data.formats.protobuf import COUNTED, FIXED32, VARINT, checked_count, counted, fields, integers, number
from paceline.data.formats.tf_example_layouts import BYTES, FEATURE, FLOATS, INTEGERS, Layouts, UnusualError
from paceline.data.size_limits import RECORD
from paceline.errors import DataError, UsageError

FIRST, SECOND = 1 << 3 | COUNTED, 2 << 3 | COUNTED
LISTS = {BYTES: (FIRST,), FLOATS: (FIRST, 1 << 3 | FIXED32), INTEGERS: (FIRST, 1 << 3 | VARINT)}  # keys of their values
VIEW = 256  # bytes that a field takes in memory while its feature is decoded
USUAL = Layouts()


def decode_example(raw: bytes, *, max_bytes: int = RECORD) -> dict[str, Any]:
    """Each feature's values: a list of bytes, or an array of float32 or int64. `max_bytes`: refuses a feature that
    takes more memory."""
    if type(raw) is not bytes:
        raw = bytes(memoryview(raw))
    try:
        return USUAL.decode(raw, max_bytes)
    except (UnusualError, IndexError, ValueError):
        return decode_any(raw, max_bytes)


def decode_any(raw: bytes, most: int = RECORD) -> dict[str, Any]:
    """Decodes any Example that the wire format allows."""
    found: dict[str, Any] = {}
    try:
        for example_key, features in fields(memoryview(raw)):
            for features_key, entry in fields(features) if example_key == FIRST else ():
                if features_key != FIRST:
                    continue
                name, feature = "", list[Any]()
                for key, value in fields(entry):
                    if key == FIRST:
                        name = bytes(value).decode()
                    elif key == SECOND:
                        feature.append(value)  # the parts of a message are joined
                        checked_count(len(feature), VIEW, most)
                found[name] = _values(memoryview(b"".join(feature)), most)
                checked_count(len(found), FEATURE, most)
    except (IndexError, ValueError) as error:
        raise DataError(
            f"Not a valid tf.train.Example: {error}.", advice="Use a decoder that matches the record type."
        ) from None
    return found


def _values(feature: memoryview, most: int) -> Any:
    """The values of the last list, because a feature has only one."""
    kind, parts = 0, list[Any]()
    for key, inner in fields(feature):
        if key not in LISTS:
            continue
        if key != kind:
            kind, parts = key, []
        parts += islice((value for key, value in fields(inner) if key in LISTS[kind]), most // VIEW + 1)
        checked_count(len(parts), VIEW, most)
    if kind == FLOATS:
        return np.frombuffer(b"".join(parts), "<f4").astype(np.float32)
    if kind == INTEGERS:
        packed = [number(part) if isinstance(part, int) else bytes(part) for part in parts]
        return np.concatenate([np.empty(0, np.int64), *(integers(part, most) for part in packed)])
    return list(map(bytes, parts))


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Encodes a tf.train.Example. Values may be bytes, strings, numbers, and lists and arrays of them."""
    entries = []
    for name, value in features.items():
        entry = counted(1, name.encode()) + counted(2, _feature(name, value))
        entries.append(counted(1, entry))
    return counted(1, b"".join(entries))


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, str)):
        value = [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, (bytes, str)) for item in value):
        raws = [item.encode() if isinstance(item, str) else item for item in value]
        return counted(1, b"".join(counted(1, raw) for raw in raws))
    array = np.atleast_1d(np.asarray(value)).ravel()
    if array.dtype.kind == "f":
        return counted(2, counted(1, array.astype("<f4").tobytes()))
    if array.dtype.kind in "bi" or (array.dtype.kind == "u" and (not array.size or array.max() < 1 << 63)):
        packed = b"".join(number(item & ((1 << 64) - 1)) for item in array.astype(np.int64).tolist())
        return counted(3, counted(1, packed))
    raise UsageError(
        f"The feature {name!r} of type {type(value).__name__} cannot be encoded.",
        advice="Use bytes, strings, numbers, or lists and arrays of them.",
    )
