"""Reads idx files (MNIST, Fashion-MNIST) and CIFAR's binary files as arrays, plain or compressed.

Files are read whole. The size in a file's header is first checked against the limit and the size of the file; then
memory is allocated once and filled in pieces.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from paceline.data.formats.compression import DamageError, Stream, open_stream
from paceline.data.size_limits import STEP, array_limit, too_large
from paceline.errors import DataError

Array = np.ndarray[Any, Any]
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
PIXELS = 3 * 32 * 32  # of a CIFAR image
AGAIN = "Download the file again."


def read_idx(path: str | os.PathLike[str], max_bytes: int | None = None) -> Array:
    """The array of an idx file. `max_bytes`: refuses a larger array (None: a share of the available memory)."""
    name = os.fspath(path)
    stream = open_stream(name)
    try:
        return _read_idx(name, stream, array_limit(max_bytes))
    except DamageError as error:
        raise DataError(f"{name}, {stream.place(stream.offset)}: {error}.", advice=AGAIN) from None
    finally:
        stream.close()


def _read_idx(name: str, stream: Stream, limit: int) -> Array:
    head = stream.read(4)
    rank = head[3] if len(head) == 4 else 0
    sizes = stream.read(4 * rank)
    if not rank or len(sizes) < 4 * rank or head[:2] != b"\0\0" or head[2] not in IDX_TYPES:
        raise DataError(
            f"{name}, {stream.place(0)}: not an idx file, because it begins with {head!r}.",
            advice="Give a file in idx format.",
        )
    shape = tuple(int.from_bytes(sizes[4 * n : 4 * n + 4], "big") for n in range(rank))
    dtype = np.dtype(IDX_TYPES[head[2]])
    need = prod(shape) * dtype.itemsize
    left = stream.left()
    if left is not None and need > left:
        raise _other_size(name, stream, shape, need, f"{left} follow at most")
    _check_limit(f"{name}: the array {list(shape)} of its header", need, limit, "data.idx")
    try:
        array = _empty(name, need).view(dtype).reshape(shape)
    except ValueError as error:  # too many dimensions, or a dimension of 0 beside very large ones
        raise DataError(
            f"{name}, {stream.place(3)}: the header's shape {list(shape)} is impossible: {error}.", advice=AGAIN
        ) from None
    found = _fill(stream, array)
    if found < need:
        raise _other_size(name, stream, shape, need, f"{found} follow")
    if stream.read(1):
        raise _other_size(name, stream, shape, need, "more follow")
    if dtype.byteorder == ">":
        array.byteswap(inplace=True)  # in place, because a copy would take the memory twice
    return array.view(dtype.newbyteorder("="))


def _other_size(name: str, stream: Stream, shape: tuple[int, ...], need: int, found: str) -> DataError:
    where = f"{name}, {stream.place(stream.offset)}"
    return DataError(f"{where}: the header says {list(shape)}, {need} bytes, but {found}.", advice=AGAIN)


def read_cifar(paths: Sequence[str], *, labels: int = 1, max_bytes: int | None = None) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels of CIFAR's binary files. `labels` bytes come before each image, and the last of
    them is the label (CIFAR-100 has 2: coarse, fine)."""
    limit, width = array_limit(max_bytes), labels + PIXELS
    parts: list[Array] = []
    for path in paths:
        stream = open_stream(path)
        try:
            parts.append(_read_all(path, stream, limit))
        except DamageError as error:
            raise DataError(f"{path}, {stream.place(stream.offset)}: {error}.", advice=AGAIN) from None
        finally:
            stream.close()
        size = len(parts[-1])
        if not size or size % width:
            raise DataError(
                f"{path}: {size} bytes are not a whole number of CIFAR records of {width} bytes.",
                advice="Give the files of the binary version, and labels=2 for CIFAR-100.",
            )
        limit -= size
    total = sum(map(len, parts)) // width
    images, classes = _empty(paths[0], total * PIXELS).reshape(-1, 3, 32, 32), np.empty(total, np.int64)
    at = 0
    parts.reverse()
    while parts:  # frees each part after its copy, to limit the memory
        rows = parts.pop().reshape(-1, width)
        images.reshape(-1, PIXELS)[at : at + len(rows)] = rows[:, labels:]
        classes[at : at + len(rows)] = rows[:, labels - 1]
        at += len(rows)
    return images, classes


def _read_all(path: str, stream: Stream, limit: int) -> Array:
    """Reads a file whose decompressed size is not known in advance."""
    found = bytearray()
    known = None if stream.packed else stream.left()
    if known is not None:
        _check_limit(f"{path}: this file (the limit counts all files)", known, limit, "data.cifar")
    try:
        while part := stream.read(STEP):
            if len(found) + len(part) > limit:
                size = len(found) + len(part)
                what = f"{path}: this file, decompressed (the limit counts all files),"
                _check_limit(what, size, limit, "data.cifar", so_far=True)
            found += part
    except MemoryError:
        raise _no_memory(path, len(found)) from None
    return np.frombuffer(found, np.uint8)


def _check_limit(what: str, size: int, limit: int, source: str, *, so_far: bool = False) -> None:
    if size > limit:
        raise too_large(what, size, limit, f"{source}(…, max_bytes={{}})", so_far=so_far)


def _empty(name: str, size: int) -> Array:
    try:
        return np.empty(size, np.uint8)
    except MemoryError:
        raise _no_memory(name, size) from None


def _no_memory(name: str, size: int) -> DataError:
    return DataError(f"{name}: there is not enough memory for its {size} bytes.", advice="Read fewer or smaller files.")


def _fill(stream: Stream, array: Array) -> int:
    """Fills the array from the stream, and returns the number of bytes that the stream had."""
    room, have = array.reshape(-1).view(np.uint8), 0
    while have < len(room) and (part := stream.read(min(STEP, len(room) - have))):
        room[have : have + len(part)] = np.frombuffer(part, np.uint8)
        have += len(part)
    return have
