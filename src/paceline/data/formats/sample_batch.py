"""Samples that are alike, decoded at once: most sets hold no others.

In records of one length (`nests` writes them, as msgpack) in which every byte is the same that says what follows, its
type, shape and length, each value stands at the same place. A batch of it is then a column of the records, laid one
below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from paceline.data.formats.sample import decode
from paceline.data.stages.collate import Allocate
from paceline.errors import DataError
from paceline.script import tree

KEPT = 16  # layouts, by the length of their records
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Column = Callable[[Bytes, Allocate], Any]  # of all records, the values of one leaf

# msgpack: tags of values that are followed by so many bytes, and what those are.
NUMBERS = {0xCB: ">f8", 0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8"}
TEXTS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of the length that comes first
NESTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


class OtherError(Exception):
    """Not alike, or nothing that is known here."""


# What a record that is no sample may raise here. Decoded by itself, it is told which one it is.
NOT_ALIKE = (OtherError, DataError, LookupError, ValueError, TypeError, OverflowError, RecursionError, StopIteration)


@dataclass(frozen=True, slots=True)
class Layout:
    """Of records that are alike: where they are the same, and how each leaf of a sample is read."""

    same: np.ndarray[Any, np.dtype[np.int64]]
    frame: Bytes
    sample: Any  # one of them
    columns: list[Column]

    def batch(self, records: Bytes, allocate: Allocate) -> Any:
        if not np.array_equal(records[:, self.same], np.broadcast_to(self.frame, (len(records), len(self.frame)))):
            raise OtherError
        return tree.rebuild(self.sample, iter([column(records, allocate) for column in self.columns]))


_layouts: dict[int, Layout] = {}  # threads may share it: at worst one learns again what another just learned


def decode_together(raws: Sequence[bytes], allocate: Allocate) -> Any:
    """The batch of these records; None where they are not alike: then each is to be decoded by itself."""
    length = len(raws[0])
    if not length or any(type(raw) is not bytes or len(raw) != length for raw in raws):
        return None
    records = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), length)
    for fresh in (False, True):
        try:
            if fresh or length not in _layouts:
                if len(_layouts) >= KEPT:
                    _layouts.clear()
                _layouts[length] = learn(raws[0])
            return _layouts[length].batch(records, allocate)
        except NOT_ALIKE:
            continue
    return None


def learn(raw: bytes) -> Layout:
    """The layout of records like this one."""
    sample = decode(raw)
    same = np.ones(len(raw), bool)
    columns: list[Column] = []
    _read(msgspec.msgpack.decode(raw), scan(raw), same, columns)
    leaves = tree.leaves(sample) if isinstance(sample, tuple | list | dict) else [sample]
    if not leaves or len(leaves) != len(columns):
        raise OtherError
    where = np.flatnonzero(same)
    return Layout(where, np.frombuffer(raw, np.uint8)[where], sample, columns)


def scan(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Each value that is no nest: its tag, and where it begins and ends. One that is told by the tag alone is that."""
    at = 0
    while at < len(raw):
        tag = raw[at]
        at += 1
        if tag in NUMBERS:
            size = np.dtype(NUMBERS[tag]).itemsize
        elif tag in TEXTS or tag in NESTS:
            width = TEXTS.get(tag) or NESTS[tag]
            size = int.from_bytes(raw[at : at + width], "big")
            at += width
            if tag in NESTS:
                continue
        elif 0xA0 <= tag < 0xC0:
            size = tag & 0x1F
        elif 0x80 <= tag < 0xA0:  # a short nest
            continue
        elif tag < 0x80 or tag >= 0xE0 or tag in (0xC0, 0xC2, 0xC3):
            yield tag, at - 1, at
            continue
        else:
            raise OtherError
        yield tag, at, at + size
        at += size


def _read(told: Any, values: Iterator[tuple[int, int, int]], same: Any, columns: list[Column]) -> None:
    """Goes through a record as `nests` wrote it, value by value, and marks those that may differ."""
    if not isinstance(told, list):
        tag, begin, end = next(values)
        if tag != 0xC0:
            same[begin:end] = False
        columns.append(_column(tag, begin, end))
        return
    kind, *rest = told
    next(values)
    if kind in ("tensor", "array"):
        dtype, shape, _ = rest
        for _ in range(1 + len(shape)):
            next(values)
        _, begin, end = next(values)
        if begin == end:
            raise OtherError
        same[begin:end] = False
        columns.append(_rows(begin, end, np.dtype(dtype), tuple(shape)))
    elif kind == "dict":
        for item in rest[0].values():
            next(values)
            _read(item, values, same, columns)
    else:
        for item in rest[0]:
            _read(item, values, same, columns)


def _rows(begin: int, end: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    kind = torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype

    def column(records: Bytes, allocate: Allocate) -> Any:
        made = allocate((len(records), *shape), kind)
        values = np.ascontiguousarray(records[:, begin:end]).view(dtype)
        made.numpy()[...] = values.reshape(len(records), *shape)
        return made

    return column


def _column(tag: int, begin: int, end: int) -> Column:
    """The values of a leaf that is no array, as `collate` puts them together."""

    def numbers(records: Bytes, allocate: Allocate) -> Any:
        values = np.ascontiguousarray(records[:, begin:end]).view(NUMBERS[tag])[:, 0]
        return torch.from_numpy(values.astype(np.float64 if tag == 0xCB else np.int64))

    def small(records: Bytes, allocate: Allocate) -> Any:
        tags = records[:, begin]
        if np.any((tags >= 0x80) & (tags < 0xE0)):
            raise OtherError  # a larger one, and something else is smaller
        return torch.from_numpy(tags.view(np.int8).astype(np.int64))

    def truths(records: Bytes, allocate: Allocate) -> Any:
        tags = records[:, begin]
        if np.any((tags != 0xC2) & (tags != 0xC3)):
            raise OtherError
        return torch.from_numpy(tags == 0xC3)

    def texts(records: Bytes, allocate: Allocate) -> Any:
        found = [record[begin:end].tobytes() for record in records]
        return found if tag in (0xC4, 0xC5, 0xC6) else [text.decode() for text in found]

    if tag in NUMBERS:
        return numbers
    if tag == 0xC0:
        return lambda records, allocate: [None] * len(records)
    if tag in (0xC2, 0xC3):
        return truths
    return texts if tag in TEXTS or 0xA0 <= tag < 0xC0 else small
