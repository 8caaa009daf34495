"""Events as TensorBoard reads them: the framing of a TFRecord file round protobuf messages of few fields."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from paceline.data.formats.protobuf import FIXED32, FIXED64, VARINT, counted, number
from paceline.data.formats.tfrecord import frame

# Numbers of the fields.
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 1, 2, 3, 5  # of an Event
VALUE = 1  # of a Summary
TAG, SIMPLE_VALUE = 1, 2  # of a Value
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def encode_first(at: float) -> bytes:
    """The event that every file begins with."""
    return _wall_time(at) + counted(FILE_VERSION, b"brain.Event:2")


def encode(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """An event with these values by tag."""
    summary = b"".join(
        counted(VALUE, counted(TAG, tag.encode()) + bytes([SIMPLE_VALUE << 3 | FIXED32]) + _float(value))
        for tag, value in values.items()
    )
    return _wall_time(at) + bytes([STEP << 3 | VARINT]) + number(step) + counted(SUMMARY, summary)


def framed(event: bytes) -> bytes:
    """An event as it lies in the file."""
    before, after = frame(event)
    return before + event + after


def _wall_time(at: float) -> bytes:
    return bytes([WALL_TIME << 3 | FIXED64]) + _DOUBLE.pack(at)


def _float(value: float) -> bytes:
    try:
        return _FLOAT.pack(value)
    except OverflowError:
        return _FLOAT.pack(math.copysign(math.inf, value))
