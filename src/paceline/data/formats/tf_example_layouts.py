"""Examples as all known programs write them: names before values, numbers packed; and most of a file alike.

What stands before a feature's value (its name, and five lengths) is gone through once. Where the same bytes stand in
another Example, they are known to say the same: it takes one look into a dictionary. Whatever is written in another way
that the wire format allows, or is no Example at all, is left to `example`.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import numpy as np

from paceline.data.formats.protobuf import checked_count, integers, varint
from paceline.data.size_limits import RECORD

BYTES, FLOATS, INTEGERS = 0x0A, 0x12, 0x1A  # tags of a feature's lists
TEXTS = 0  # a list of bytes that does not hold one, but any number
HEADS, FEATURES = 4096, 256  # that are kept
WIDTHS = 4  # of one feature that are tried
WIDEST = 256  # bytes of a head that is kept
FEATURE, TEXT = 512, 64  # bytes that a feature, and one of several texts, take in memory beside their values
UNKNOWN = repeat(0)
FLOAT = np.dtype("<f4")
Head = tuple[str, int, int, int]  # name and kind; where its value begins and ends, from where the head does


class UnusualError(Exception):
    """Written in a way that is allowed, and that nobody writes; or no Example at all."""


class Layouts:
    """What was seen so far. Threads may share it: at worst one of them looks again at what another just learned."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}
        self.widths: tuple[int, ...] = ()  # bytes of each head, to be tried first
        self.others: dict[int, tuple[int, ...]] = {}  # … and next: of a text that is now short and now long

    def decode(self, raw: bytes, most: int = RECORD) -> dict[str, Any]:
        """Each feature's values, of `most` bytes in memory. What is no usual Example raises UnusualError, IndexError
        or ValueError."""
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
                raise UnusualError  # a value is longer than what there is
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
        """The head of the feature of this number, which is of another width than the last one's, or new."""
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
    """The head that begins there, and how many bytes it has. All that follows from it follows from these bytes."""
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
    except (UnusualError, IndexError):  # none, or several
        if kind != BYTES:
            raise UnusualError from None
        return (name, TEXTS, begin - start, stop - start), begin - start
    if kind == FLOATS and (stop - at) % 4:
        raise UnusualError
    return (name, kind, at - start, stop - start), at - start


def texts(raw: bytes, at: int, stop: int, most: int) -> list[bytes]:
    """A list of bytes."""
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
    """Where the value of a field with this tag begins, which must end where everything around it does."""
    if raw[at] != tag:
        raise UnusualError
    size, at = length(raw, at + 1)
    if at + size != stop:
        raise UnusualError
    return at


def length(raw: bytes, at: int) -> tuple[int, int]:
    """A number, most often of one byte or two, and where the next thing begins."""
    first = raw[at]
    if first < 0x80:
        return first, at + 1
    second = raw[at + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, at + 2
    return varint(raw, at)
