"""Reads and writes `tf.train.Example` without TensorFlow: a dictionary of lists of bytes, floats or integers.

In the wire format of protocol buffers: Example 1: Features 1: { 1: name, 2: Feature }; a Feature has 1: a list of
bytes, 2: a list of floats, or 3: a list of integers, packed or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.size_limits import RECORD, too_large
from paceline.errors import DataError, UsageError

# -- the wire format of protocol buffers ------------------------------------------------------------------------------


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


# -- the fast path: Examples in the usual form ------------------------------------------------------------------------
# The header of a feature (the bytes before its value: its name and five lengths) is parsed once. If another Example has
# the same bytes, one dictionary lookup is enough. Examples in any other form that the wire format allows, and records
# that are not Examples, are left to `tf_example`.


BYTES, FLOATS, INTEGERS = 0x0A, 0x12, 0x1A  # tags of a feature's lists
TEXTS = 0  # a list of bytes with any number of values but one
HEADS, FEATURES = 4096, 256  # headers, and features of an Example, that are remembered
WIDTHS = 4  # header widths that are tried for one feature
WIDEST = 256  # bytes of a header that is remembered, at most
FEATURE, TEXT = 512, 64  # bytes that a feature, and one of several byte strings, take in memory beside their values
UNKNOWN = repeat(0)
FLOAT = np.dtype("<f4")
Head = tuple[str, int, int, int]  # name, kind, and start and end of the value, counted from the header's start


class UnusualError(Exception):
    """An Example in an unusual form that the wire format allows, or not an Example."""


class Layouts:
    """Headers seen so far. Shared by threads: at worst a thread parses a header that another has just parsed."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}
        self.widths: tuple[int, ...] = ()  # bytes of each feature's header in the last Example, tried first
        self.others: dict[int, tuple[int, ...]] = {}  # other widths, tried next: the lengths of values vary

    def decode(self, raw: bytes, most: int = RECORD) -> dict[str, Any]:
        """Each feature's values, of `most` bytes in memory at most. Raises UnusualError, IndexError or ValueError if
        the Example does not have the usual form."""
        found: dict[str, Any] = {}
        end = len(raw)
        if not end:
            return found
        size, at = length(raw, 1)
        if raw[0] != 0x0A or at + size != end:
            raise UnusualError
        head_of = self.heads.get
        for width in chain(self.widths, UNKNOWN):
            if at >= end:
                break
            name, kind, begin, stop = head_of(raw[at : at + width]) or self._learn(raw, at, end, len(found), most)
            begin += at
            at += stop
            if at > end:
                raise UnusualError  # a value is longer than the record
            if kind == BYTES:
                found[name] = [raw[begin:at]]
            elif kind == INTEGERS:
                found[name] = integers(raw[begin:at], most)
            elif kind == FLOATS:
                found[name] = np.ndarray((at - begin) >> 2, FLOAT, bytearray(raw[begin:at]))
            else:
                found[name] = texts(raw, begin, at, most)
        return found

    def _learn(self, raw: bytes, at: int, end: int, number: int, most: int) -> Head:
        """The header of feature `number`, if its width differs from the last Example's, or it is new."""
        checked_count(number, FEATURE, most)
        others = self.others.get(number, ())
        for width in others:
            known = self.heads.get(raw[at : at + width])
            if known is not None:
                return known
        head, width = read_head(raw, at, end)
        if width <= WIDEST and number < FEATURES:
            if len(self.heads) >= HEADS:
                self.heads.clear()
            self.heads[raw[at : at + width]] = head
            widths = self.widths
            if widths[number : number + 1] != (width,):
                self.widths = (*widths[:number], width, *widths[number + 1 :])
                self.others[number] = (width, *(other for other in others if other != width))[:WIDTHS]
        return head


def read_head(raw: bytes, start: int, end: int) -> tuple[Head, int]:
    """The header that begins at `start`, and its width in bytes. The header depends on these bytes only."""
    if raw[start] != 0x0A:
        raise UnusualError
    size, at = length(raw, start + 1)
    stop = at + size
    if stop > end or raw[at] != 0x0A:
        raise UnusualError
    size, at = length(raw, at + 1)
    if at + size >= stop:
        raise UnusualError
    name = raw[at : at + size].decode()
    at = into(raw, at + size, stop, 0x12)
    kind = raw[at] if at < stop else 0
    if kind not in (BYTES, FLOATS, INTEGERS):
        raise UnusualError
    begin = into(raw, at, stop, kind)
    try:
        at = into(raw, begin, stop, 0x0A)
    except (UnusualError, IndexError):  # no value, or several
        if kind != BYTES:
            raise UnusualError from None
        return (name, TEXTS, begin - start, stop - start), begin - start
    if kind == FLOATS and (stop - at) % 4:
        raise UnusualError
    return (name, kind, at - start, stop - start), at - start


def texts(raw: bytes, at: int, stop: int, most: int) -> list[bytes]:
    """A list of byte strings."""
    found: list[bytes] = []
    enough = most // TEXT
    while at < stop:
        if raw[at] != 0x0A:
            raise UnusualError
        size, at = length(raw, at + 1)
        if at + size > stop:
            raise UnusualError
        found.append(raw[at : at + size])
        if len(found) > enough:
            checked_count(len(found), TEXT, most)
        at += size
    return found


def into(raw: bytes, at: int, stop: int, tag: int) -> int:
    """The start of the value of a field with this tag. The value must end at `stop`."""
    if raw[at] != tag:
        raise UnusualError
    size, at = length(raw, at + 1)
    if at + size != stop:
        raise UnusualError
    return at


def length(raw: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, usually of one or two bytes, and the position after it."""
    first = raw[at]
    if first < 0x80:
        return first, at + 1
    second = raw[at + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, at + 2
    return varint(raw, at)


# -- any Example ------------------------------------------------------------------------------------------------------


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
