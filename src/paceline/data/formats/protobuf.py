"""The wire format of protocol buffers, as far as tf.train.Example needs it.

A message is a sequence of fields: a key (the field's number and kind), then the value, preceded by its length if the
kind has no fixed length. Numbers are written in groups of seven bits, the lowest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.size_limits import RECORD, too_large

VARINT, FIXED64, COUNTED, FIXED32 = 0, 1, 2, 5
ALL = (1 << 64) - 1
FEW = 32  # bytes up to which Python is faster than numpy
SLAB = 1 << 20  # bytes that numpy decodes at once
Integers = npt.NDArray[np.int64]
ONE: Integers = np.zeros(1, np.int64)


def varint(view: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and the position after it."""
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


def fields(view: Any) -> Iterator[tuple[int, Any]]:
    """Keys and values of a message; values other than numbers are views. A key is the field's number and kind, so a
    field of an unexpected kind is an unknown field."""
    at, end = 0, len(view)
    while at < end:
        key, at = varint(view, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(view, at)
            yield key, value
            continue
        if kind == COUNTED:
            size, at = varint(view, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if at + size > end:
            raise ValueError("a field is longer than its message")
        yield key, view[at : at + size]
        at += size


def integers(raw: bytes, most: int = RECORD) -> Integers:
    """Packed signed numbers as a new array of `most` bytes at most."""
    if len(raw) <= 2:
        return _short(raw).copy()  # usually a label: one of few values, so cached
    if len(raw) <= FEW:
        return _by_hand(raw)
    return _by_numpy(raw) if len(raw) <= SLAB else _in_slabs(raw, most)


def _in_slabs(raw: bytes, most: int) -> Integers:
    """Decodes many numbers piece by piece, because a number of one byte takes 8 bytes, and 40 while it is decoded."""
    view = np.frombuffer(raw, np.uint8)
    found = np.empty(checked_count(int(np.count_nonzero(view < 0x80)), 8, most), np.int64)
    at = have = 0
    while at < len(view):
        ends = np.flatnonzero(view[at : at + SLAB] < 0x80)
        if not len(ends):
            raise ValueError("a number of more than 64 bits")
        stop = at + int(ends[-1]) + 1
        part = _by_numpy(raw[at:stop])
        found[have : have + len(part)] = part
        at, have = stop, have + len(part)
    return found


def checked_count(count: int, size: int, most: int) -> int:
    """Returns `count`, or raises DataError if `count` values of `size` bytes take more than `most` bytes."""
    if count * size > most:
        need = count * size
        raise too_large("The Example, decoded,", need, most, "data.decode_example(…, max_bytes={})", so_far=True)
    return count


def _by_hand(raw: bytes) -> Integers:
    found, at, end = [], 0, len(raw)
    while at < end:
        value, at = varint(raw, at)
        found.append(value - (1 << 64) if value >> 63 else value)
    if len(found) != 1:
        return np.array(found, np.int64)
    one = ONE.copy()  # a fraction of the time of np.array(list)
    one[0] = found[0]
    return one


_short = lru_cache(maxsize=4096)(_by_hand)


def _by_numpy(view: bytes) -> Integers:
    """Decodes all numbers together, group by group, from the last and highest group to the first."""
    raw = np.frombuffer(view, np.uint8)
    ends = (raw < 0x80).nonzero()[0]
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a number is cut off")
    sizes = ends.copy()
    sizes[1:] -= ends[:-1]
    sizes[0] += 1
    longest = int(sizes.max())
    if longest > 10:
        raise ValueError("a number of more than 64 bits")
    found = raw[ends].astype(np.int64)
    shortest = int(sizes.min())
    groups = raw & np.uint8(0x7F)
    for back in range(1, longest):
        more = found << 7
        more |= groups[ends - back]
        found = more if back < shortest else np.where(sizes > back, more, found)
    return found


def number(value: int) -> bytes:
    """Encodes a number."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def counted(field: int, raw: bytes) -> bytes:
    """Encodes a field whose value is preceded by its length."""
    return bytes([field << 3 | COUNTED]) + number(len(raw)) + raw
