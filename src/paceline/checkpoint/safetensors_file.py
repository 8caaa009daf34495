"""The safetensors format, written one tensor at a time and read by byte ranges.

A file is the length of its header (8 bytes, little endian), the header (JSON: each tensor's dtype, shape and byte range
in the data) and the data. The safetensors package writes a file from a dictionary of all its tensors; a checkpoint of
parts that are gathered one by one must not hold all of them in memory. Works without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError

ALIGNMENT = 64  # of the data: readers map it into memory
LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors package
ENTRY_ROOM, DIM_ROOM = 110, 16  # bytes of a header entry at most, besides its name: sizes have up to 15 digits


def header_room(dims: dict[str, int]) -> int:
    """Bytes that the header of any file with some of these tensors needs at most. Given are names and numbers of
    dimensions; a part of a tensor may have fewer than the whole."""
    needed = sum(len(json.dumps(name)) + ENTRY_ROOM + max(dim + 1, 8) * DIM_ROOM for name, dim in dims.items()) + 2
    return _aligned(8 + needed) - 8


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class SafetensorsWriter:
    """Writes one new file. Tensors come in the order of falling item size, so that each one is aligned."""

    def __init__(self, path: Path, room: int) -> None:
        self.path, self._room = path, room
        self._header: dict[str, Any] = {}
        self.size = 0  # of the data so far
        self._file = open(path, "xb")  # noqa: SIM115 - closed by `close` or `abandon`
        self._file.seek(8 + room)  # the header is written last, when all sizes are known

    def add(self, name: str, dtype: str, shape: Sequence[int], data: Any) -> None:
        """Appends a tensor. `dtype` is its safetensors name, `data` its bytes."""
        length = memoryview(data).nbytes
        if length:
            self._file.write(data)
        self._header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.size, self.size + length]}
        self.size += length

    def close(self) -> None:
        """Writes the header, and returns when the file is on the disk."""
        text = json.dumps(self._header, separators=(",", ":")).encode()
        assert len(text) <= self._room
        self._file.truncate(8 + self._room + self.size)  # also if all tensors are empty
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + text.ljust(self._room))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes a file that nobody will read."""
        self._file.close()


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header's entries, and where the data begins. Checks that every byte range lies in the file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise _not_one(path)
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            ends = [entry["data_offsets"] for entry in header.values()]
        except (ValueError, AttributeError, KeyError, TypeError):
            raise _not_one(path) from None
    begin = 8 + length
    if any(not 0 <= start <= stop <= size - begin for start, stop in ends):
        raise _not_one(path)
    return header, begin


def _not_one(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a complete safetensors file.", advice="Load another checkpoint: this one is damaged."
    )
