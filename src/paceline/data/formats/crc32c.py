"""Masked CRC32C checksums of TFRecord files and TensorBoard's event files, computed by google-crc32c."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from paceline.errors import UsageError

Words = npt.NDArray[np.uint32]

MASK = 0xA282EAD8


@cache
def checksum() -> Callable[[bytes], int]:
    """The function that computes a CRC32C, without the mask. UsageError if the package is missing."""
    try:
        import google_crc32c
    except ImportError:
        raise UsageError(
            "TFRecord and TensorBoard files need the package google-crc32c, which is not installed.",
            advice='Install it: pip install "paceline[data]"',
        ) from None
    return google_crc32c.value


def masked(data: bytes) -> int:
    """The checksum as it is stored: masked, because a CRC of data that contains CRCs is weak."""
    crc = checksum()(data)
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


def masked_all(records: Sequence[bytes]) -> Words:
    """The masked checksums of many records."""
    crcs = np.fromiter(map(checksum(), records), np.uint32, len(records))
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(MASK)
