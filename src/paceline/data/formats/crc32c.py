"""CRC32C, which TFRecord files are checked by: with the package google-crc32c where it is there, else with numpy.

Without the package texts are cut into pieces of one length, and numpy goes through all pieces of all texts at once, two
bytes at a time. What a text's pieces give is put together afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78
MASK = 0xA282EAD8
ONES = np.uint32(0xFFFFFFFF)
PIECE = 256  # bytes
GROUP = 16  # pieces that are put together at once
SLAB = 4096  # pieces that are gone through at once: so many stay in a core's cache
LONG = 8192  # bytes of a text that numpy is worth it for


def masked(crc: int) -> int:
    """As it stands in a file: a CRC of data that holds CRCs would be a weak one."""
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


def masked_all(crcs: Words) -> Words:
    """The same for many."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(MASK)


@cache
def value() -> Callable[[bytes], int]:
    """The function that gives a text's CRC: the fastest that there is here."""
    try:
        import google_crc32c
    except ImportError:
        return by_numpy
    if google_crc32c.implementation != "c":
        return by_numpy
    return google_crc32c.value


def of_all(texts: Sequence[bytes]) -> Words:
    """The CRC of each text."""
    function = value()
    return all_by_numpy(texts) if function is by_numpy else np.fromiter(map(function, texts), np.uint32, len(texts))


def took_numpy() -> bool:
    """Whether texts were gone through without the package, for which tables are made when they are first needed."""
    return table.cache_info().currsize > 0


# -- without the package -----------------------------------------------------------------------------------------------


def by_numpy(data: bytes) -> int:
    """Of one text."""
    if len(data) >= LONG:
        return int(all_by_numpy([data])[0])
    crc, steps = 0xFFFFFFFF, _steps()
    for byte in data:  # numpy would take longer for one byte than Python does
        crc = steps[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def all_by_numpy(texts: Sequence[bytes]) -> Words:
    """Of many: some hundred megabytes a second.

    Zeros before a text change nothing where the register begins with zero, so texts of all lengths are filled up in
    front. That it begins with ones is the same as to turn the bits of a text's first four bytes."""
    sizes: Any = np.fromiter(map(len, texts), np.int64, len(texts))
    pieces = -(-sizes // PIECE)
    ends = np.cumsum(pieces) * PIECE
    flat = np.zeros(int(ends[-1]) if len(texts) else 0, np.uint8)
    for text, end, size in zip(texts, ends.tolist(), sizes.tolist(), strict=True):
        flat[end - size : end] = np.frombuffer(text, np.uint8)
    begins = (ends - sizes)[sizes >= 4]
    flat[begins[:, None] + np.arange(4)] ^= np.uint8(0xFF)
    crcs, length = _of_pieces(flat), PIECE
    while pieces.max(initial=0) > 1:
        crcs, pieces = _joined(crcs, pieces, length)
        length *= GROUP
    found = np.zeros(len(texts), np.uint32)
    found[pieces > 0] = crcs
    found ^= ONES
    for number in np.flatnonzero(sizes < 4).tolist():
        found[number] = by_numpy(texts[number])
    return found


def _of_pieces(flat: npt.NDArray[np.uint8]) -> Words:
    """What each piece makes of a register of zeros."""
    rows = flat.view("<u2").reshape(-1, PIECE // 2)
    steps, found = table(), np.zeros(len(rows), np.uint32)
    for begin in range(0, len(rows), SLAB):
        crc = found[begin : begin + SLAB]
        for pair in np.ascontiguousarray(rows[begin : begin + SLAB].T):
            crc ^= pair
            crc[:] = steps[crc & np.uint32(0xFFFF)] ^ (crc >> np.uint32(16))
    return found


def _joined(crcs: Words, pieces: Any, length: int) -> tuple[Words, Any]:
    """Each text's pieces of this length in groups, filled up in front with zeros; what the groups give, and how many of
    them each text has."""
    groups = -(-pieces // GROUP)
    rows = np.zeros(int(groups.sum()) * GROUP, np.uint32)
    rows[np.arange(len(crcs)) + np.repeat(np.cumsum(groups) * GROUP - np.cumsum(pieces), pieces)] = crcs
    found = np.zeros(len(rows) // GROUP, np.uint32)
    for column in rows.reshape(-1, GROUP).T:
        found = _over(found, length) ^ column
    return found, groups


def _over(crcs: Words, length: int) -> Words:
    """What these registers become over so many zeros."""
    low, second, third, high = _zeros(length)
    byte = np.uint32(0xFF)
    return (
        low[crcs & byte]
        ^ second[(crcs >> np.uint32(8)) & byte]
        ^ third[(crcs >> np.uint32(16)) & byte]
        ^ high[crcs >> np.uint32(24)]
    )


@cache
def table() -> Words:
    """What two bytes do to a register."""
    crc = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(POLYNOMIAL), crc >> 1)
    return crc


@cache
def _steps() -> list[int]:
    """What one byte does to it."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(POLYNOMIAL), crc >> 1)
    return [int(step) for step in crc]


@cache
def _zeros(length: int) -> Words:
    """What zeros do to each byte of a register: a piece of them, or a group of what is known."""
    crc = np.arange(256, dtype=np.uint32) << (np.arange(4, dtype=np.uint32)[:, None] * np.uint32(8))
    if length == PIECE:
        for _ in range(PIECE // 2):
            crc = table()[crc & np.uint32(0xFFFF)] ^ (crc >> np.uint32(16))
    else:
        for _ in range(GROUP):
            crc = _over(crc, length // GROUP)
    return crc
