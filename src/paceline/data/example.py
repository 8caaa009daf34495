"""The records that TensorFlow writes: `Example`, a dictionary of lists of bytes, floats or integers.

In the wire format of protocol buffers: Example 1: Features 1: { 1: name, 2: Feature }; a Feature holds 1: a list of
bytes, 2: one of floats, 3: one of integers, packed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from paceline.errors import DataError, UsageError

BYTES, FLOATS, INTEGERS = 1, 2, 3
VARINT, FIXED64, COUNTED, FIXED32 = 0, 1, 2, 5
ALL = (1 << 64) - 1
BYTES_TAG, FLOATS_TAG, INTEGERS_TAG = KINDS = 0x0A, 0x12, 0x1A


def decode_example(raw: bytes) -> dict[str, Any]:
    """Each feature's values: a list of bytes, or an array of float32 or int64."""
    try:
        return _as_usual(raw)
    except (_UnusualError, IndexError, ValueError):
        pass
    found: dict[str, Any] = {}
    view = memoryview(raw)
    try:
        for number, features in _fields(view):
            if number != 1:
                continue
            for entry_number, entry in _fields(features):
                if entry_number != 1:
                    continue
                name, feature = "", memoryview(b"")
                for part, value in _fields(entry):
                    if part == 1:
                        name = bytes(value).decode()
                    elif part == 2:
                        feature = value
                found[name] = _values(feature)
    except (IndexError, ValueError, struct.error, TypeError) as error:
        raise DataError(f"It is no Example: {error}.", advice="Decode it as what it is.") from None
    return found


class _UnusualError(Exception):
    """Written in a way that is allowed, and that nobody writes; or no Example at all."""


def _as_usual(raw: bytes) -> dict[str, Any]:
    """An Example as all known programs write it: names before values, numbers packed. In one go, without a call for
    each field, because there are many."""
    found: dict[str, Any] = {}
    end = len(raw)
    if not end:
        return found
    at = _into(raw, 0, end, 0x0A)
    while at < end:
        if raw[at] != 0x0A:
            raise _UnusualError
        size, at = raw[at + 1], at + 2
        if size > 0x7F:
            size, at = _longer(raw, at, size)
        stop = at + size
        if stop > end or raw[at] != 0x0A:
            raise _UnusualError
        size, at = raw[at + 1], at + 2
        if size > 0x7F:
            size, at = _longer(raw, at, size)
        name = raw[at : at + size]
        at = _into(raw, at + size, stop, 0x12)
        kind = raw[at] if at < stop else 0
        if kind not in KINDS:
            raise _UnusualError
        at = _into(raw, at, stop, kind)
        values: list[bytes] = []
        while at < stop:
            if raw[at] != 0x0A:
                raise _UnusualError
            size, at = raw[at + 1], at + 2
            if size > 0x7F:
                size, at = _longer(raw, at, size)
            if at + size > stop:
                raise _UnusualError
            values.append(raw[at : at + size])
            at += size
        if kind == BYTES_TAG:
            found[_text(name)] = values
        elif len(values) != 1:
            raise _UnusualError
        elif kind == FLOATS_TAG:
            if len(values[0]) % 4:
                raise _UnusualError
            found[_text(name)] = np.frombuffer(bytearray(values[0]), "<f4")
        else:
            numbers = _varints(values[0])
            if max(numbers, default=0) >> 63:
                numbers = [value - (1 << 64) if value >> 63 else value for value in numbers]
            found[_text(name)] = np.array(numbers, np.int64)
    return found


def _into(raw: bytes, at: int, stop: int, tag: int) -> int:
    """Where a field with this tag begins, which must end where everything around it does."""
    if raw[at] != tag:
        raise _UnusualError
    size, at = raw[at + 1], at + 2
    if size > 0x7F:
        size, at = _longer(raw, at, size)
    if at + size != stop:
        raise _UnusualError
    return at


def _longer(raw: bytes, at: int, first: int) -> tuple[int, int]:
    """A number whose first byte says that there are more."""
    second = raw[at]
    if second < 0x80:
        return first & 0x7F | second << 7, at + 1
    third = raw[at + 1]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, at + 2
    return _varint(raw, at - 1)


@lru_cache(maxsize=1024)
def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise _UnusualError from None


def _varint(view: bytes | memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = view[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found & ALL, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(view: Any) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message; values that are counted as views."""
    at, end = 0, len(view)
    while at < end:
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == COUNTED:
            size, at = _varint(view, at)
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield number, view[at : at + size]
            at += size
        elif kind == VARINT:
            value, at = _varint(view, at)
            yield number, value
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
            if at + size > end:
                raise ValueError("a field is longer than its message")
            yield number, view[at : at + size]
            at += size
        else:
            raise ValueError(f"a field of the unknown kind {kind}")


def _values(feature: memoryview) -> Any:
    for number, inner in _fields(feature):
        if number == BYTES:
            return [bytes(value) for part, value in _fields(inner) if part == 1]
        if number == FLOATS:
            raw = b"".join(bytes(value) for part, value in _fields(inner) if part == 1)
            return np.frombuffer(raw, "<f4").astype(np.float32)
        if number == INTEGERS:
            found: list[int] = []
            for part, value in _fields(inner):
                if part == 1:
                    found += [value] if isinstance(value, int) else _varints(value)
            return np.array([value - (1 << 64) if value >> 63 else value for value in found], np.int64)
    return []


def _varints(raw: bytes | memoryview) -> list[int]:
    if len(raw) > 64:
        return _many_varints(raw)
    found, at, end = [], 0, len(raw)
    while at < end:
        byte = raw[at]
        if byte < 0x80:
            found.append(byte)
            at += 1
        else:
            value, at = _varint(raw, at)
            found.append(value)
    return found


def _many_varints(view: bytes | memoryview) -> list[int]:
    """The same for long lists, by numpy."""
    raw = np.frombuffer(view, np.uint8)
    last = raw < 0x80
    if not last[-1]:
        raise ValueError("a number is cut off")
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if sizes.max() > 10:
        raise ValueError("a number of more than 64 bits")
    found = np.zeros(len(ends), np.uint64)
    for digit in range(int(sizes.max())):
        there = sizes > digit
        found[there] |= (raw[starts[there] + digit].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * digit)
    return found.tolist()


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Values may be bytes, texts, numbers, lists and arrays of them."""
    entries = []
    for name, value in features.items():
        entry = _counted(1, name.encode()) + _counted(2, _feature(name, value))
        entries.append(_counted(1, entry))
    return _counted(1, b"".join(entries))


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, str)):
        value = [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, (bytes, str)) for item in value):
        raws = [item.encode() if isinstance(item, str) else item for item in value]
        return _counted(BYTES, b"".join(_counted(1, raw) for raw in raws))
    array = np.atleast_1d(np.asarray(value)).ravel()
    if array.dtype.kind == "f":
        return _counted(FLOATS, _counted(1, array.astype("<f4").tobytes()))
    if array.dtype.kind in "bi" or (array.dtype.kind == "u" and (not array.size or array.max() < 1 << 63)):
        packed = b"".join(_number(item & ((1 << 64) - 1)) for item in array.astype(np.int64).tolist())
        return _counted(INTEGERS, _counted(1, packed))
    raise UsageError(
        f"Asked to write the feature {name!r} of type {type(value).__name__}.",
        advice="Features are bytes, texts, numbers, and lists and arrays of them.",
    )


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _counted(number: int, raw: bytes) -> bytes:
    return bytes([number << 3 | COUNTED]) + _number(len(raw)) + raw
