"""Encodes TensorBoard events: small protobuf messages, framed as in a TFRecord file."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from paceline.data.formats.tf_example import FIXED32, FIXED64, VARINT, counted, number
from paceline.data.formats.tfrecord import frame

# Protobuf field numbers.
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 1, 2, 3, 5  # of an Event
VALUE = 1  # of a Summary
TAG, SIMPLE_VALUE = 1, 2  # of a Value
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def encode_first(at: float) -> bytes:
    """The first event of every file."""
    return _wall_time(at) + counted(FILE_VERSION, b"brain.Event:2")


def encode(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """An event with these values by tag."""
    summary = b"".join(
        counted(VALUE, counted(TAG, tag.encode()) + bytes([SIMPLE_VALUE << 3 | FIXED32]) + _float(value))
        for tag, value in values.items()
    )
    return _wall_time(at) + bytes([STEP << 3 | VARINT]) + number(step) + counted(SUMMARY, summary)


def framed(event: bytes) -> bytes:
    """An event with the header and footer of a TFRecord."""
    before, after = frame(event)
    return before + event + after


def _wall_time(at: float) -> bytes:
    return bytes([WALL_TIME << 3 | FIXED64]) + _DOUBLE.pack(at)


def _float(value: float) -> bytes:
    try:
        return _FLOAT.pack(value)
    except OverflowError:
        return _FLOAT.pack(math.copysign(math.inf, value))
