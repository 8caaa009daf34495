"""Fast path for Examples in the usual form: names before values, numbers packed, and few different headers in a file.

The header of a feature (the bytes before its value: its name and five lengths) is parsed once. If another Example has
the same bytes, one dictionary lookup is enough. Examples in any other form that the wire format allows, and records
that are not Examples, are left to `tf_example`.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import numpy as np

from paceline.data.formats.protobuf import checked_count, integers, varint
from paceline.data.size_limits import RECORD

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
