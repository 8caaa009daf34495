"""CRC32C, which TFRecord files are checked by: with the package google-crc32c where it is there, else with numpy.

The CRC of a long text is put together from those of its parts: numpy works on all parts at once, byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78
MASK = 0xA282EAD8
PARTS = 64  # of a long text
LONG = 4096  # bytes


@cache
def table() -> Words:
    """What a byte does to a CRC."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(POLYNOMIAL), crc >> 1)
    return crc


def masked(crc: int) -> int:
    """As it stands in a file: a CRC of data that holds CRCs would be a weak one."""
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


def masked_all(crcs: Words) -> Words:
    """The same for many."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(MASK)


def of_all(texts: Sequence[bytes]) -> Words:
    """The CRC of each text."""
    return np.fromiter(map(value(), texts), np.uint32, len(texts))


def of_rows(rows: npt.NDArray[np.uint8], start: int = 0) -> Words:
    """The CRC of each row."""
    crc, steps = np.full(len(rows), start ^ 0xFFFFFFFF, np.uint32), table()
    for column in range(rows.shape[1]):
        crc = steps[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


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


def by_numpy(data: bytes) -> int:
    """Without any package: some megabytes a second."""
    if len(data) < LONG:
        crc, steps = 0xFFFFFFFF, _steps()
        for byte in data:  # numpy would take longer for one byte than Python does
            crc = steps[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        return crc ^ 0xFFFFFFFF
    width = len(data) // PARTS
    whole = np.frombuffer(data, np.uint8)
    parts = of_rows(whole[: width * PARTS].reshape(PARTS, width))
    crc, shift = 0, _shift(width)
    for part in parts.tolist():
        crc = _apply(shift, crc) ^ part
    rest = whole[width * PARTS :]
    return int(of_rows(rest[None], crc)[0]) if len(rest) else crc


@cache
def _steps() -> list[int]:
    return [int(step) for step in table()]


@cache
def _shift(length: int) -> tuple[int, ...]:
    """What `length` bytes of zeros do to a CRC, as a matrix of bits: its columns."""
    steps = table()
    one = tuple(int(steps[bit & 0xFF]) ^ (bit >> 8) for bit in (1 << n for n in range(32)))
    found = tuple(1 << n for n in range(32))
    while length:
        if length & 1:
            found = tuple(_apply(one, column) for column in found)
        one = tuple(_apply(one, column) for column in one)
        length >>= 1
    return found


def _apply(matrix: tuple[int, ...], crc: int) -> int:
    found = 0
    for column in matrix:
        if not crc:
            break
        if crc & 1:
            found ^= column
        crc >>= 1
    return found
