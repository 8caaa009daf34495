"""Records of TFRecord files by index."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.data.formats import crc32c
from paceline.data.formats.tfrecord import CRC, HEAD, LENGTH, TAIL, Reader, read_index
from paceline.data.planning.order import Indices
from paceline.data.size_limits import RECORD, too_large
from paceline.errors import DataError


class IndexedRecords:
    """The records of several files by index. If a file has no index file, its lengths are read once, from start to end.
    Any thread may call `fetch`."""

    gather: Callable[[Indices], Any] | None = None

    def __init__(self, paths: Sequence[str], max_bytes: int = RECORD) -> None:
        crc32c.checksum()  # raises if the package is missing, before anything is read
        self.paths, self._limit = list(paths), max_bytes
        self._offsets = [read_index(path) for path in self.paths]
        self._offsets = [
            _walk(path) if known is None else known for path, known in zip(self.paths, self._offsets, strict=True)
        ]
        self._ends = np.cumsum([len(offsets) for offsets in self._offsets if offsets is not None])
        self._files: dict[int, int] = {}  # number → descriptor
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def fetch(self, index: int) -> bytes:
        file, number = self._place(index)
        offsets = self._offsets[file]
        assert offsets is not None
        offset = int(offsets[number])
        descriptor = self._descriptor(file)
        head = self._read(index, descriptor, HEAD, offset)
        right = len(head) == HEAD and crc32c.masked(head[:8]) == CRC.unpack_from(head, 8)[0]
        length = LENGTH.unpack_from(head)[0] if right else 0
        room = os.fstat(descriptor).st_size - offset - HEAD - TAIL
        if self._limit < length <= room:
            what = f"{self.name(index)}, at byte {offset},"
            raise too_large(what, length, self._limit, "data.indexed(…, max_bytes={})")
        body = self._read(index, descriptor, length + TAIL, offset + HEAD) if right and length <= room else b""
        if not right or len(body) != length + TAIL:
            raise DataError(
                f"{self.name(index)}, at byte {offset}: there is no record, so the index does not match the file.",
                advice=f"Delete the index: rm {self.paths[file]}.index",
            )
        record = body[:length]
        if crc32c.masked(record) != CRC.unpack_from(body, length)[0]:
            raise DataError(
                f"{self.name(index)}, at byte {offset}: its checksum is wrong.", advice="Write the file again."
            )
        return record

    def _read(self, index: int, descriptor: int, size: int, offset: int) -> bytes:
        try:
            found = os.pread(descriptor, size, offset)
            while len(found) < size and (more := os.pread(descriptor, size - len(found), offset + len(found))):
                found += more  # the kernel returns at most 2 GiB at once
            return found
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or f"there is not enough memory for its {size} bytes"
            raise DataError(f"{self.name(index)}, at byte {offset}: {reason}.", advice="Check the disk.") from None

    def name(self, index: int) -> str:
        file, number = self._place(index)
        return f"record {number} of {self.paths[file]}"

    def _place(self, index: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, index, side="right"))
        return file, index - (int(self._ends[file - 1]) if file else 0)

    def _descriptor(self, file: int) -> int:
        """The file's descriptor. It stays open, and any thread or forked process reads from it at any offset."""
        with self._lock:
            if file not in self._files:
                try:
                    self._files[file] = os.open(self.paths[file], os.O_RDONLY)
                except OSError as error:
                    raise DataError(
                        f"{self.paths[file]} cannot be opened: {error.strerror}.",
                        advice="Check the path; to open more files at a time: ulimit -n 65536",
                    ) from None
            return self._files[file]

    def __del__(self) -> None:
        for descriptor in getattr(self, "_files", {}).values():
            os.close(descriptor)


def _walk(path: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The offsets of a file's records. Reads only the lengths."""
    reader = Reader(path)
    try:
        if not reader.plain:
            raise DataError(
                f"{path} is compressed, so its records cannot be read by index.",
                advice="Use data.files(…).records().",
            )
        return np.asarray(reader.walk(), np.int64)
    finally:
        reader.close()
