"""Reads and writes TFRecord files.

A record is its length (8 bytes), the masked CRC32C of the length, the data, and the masked CRC32C of the data.
Files are read in blocks, and all checksums of a block are checked together. The first bytes show whether a file is
compressed with gzip or zlib. A length is used only if its CRC is right and the file has that many bytes.
"""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from paceline.data.error_policy import LostSamples, Policy
from paceline.data.formats import crc32c
from paceline.data.formats.compression import DamageError, Stream, opened, read_from
from paceline.data.size_limits import RECORD, STEP, too_large
from paceline.data.storage import is_remote, open_file, size_of
from paceline.errors import DataError, UsageError

HEAD, TAIL = 12, 4  # bytes around a record
BLOCK = 512 << 10  # bytes that are read at once: a block of this size fits into a core's cache
HEADS = 4096  # lengths that are remembered
LINE = 48  # bytes of a line of an index, at most
LENGTH = struct.Struct("<Q")
BEFORE = struct.Struct("<QI")  # the length of a record and the checksum of the length
CRC = struct.Struct("<I")
_own = threading.local()
NONE: crc32c.Words = np.empty(0, np.uint32)
CUT_OFF, NO_LENGTH = "the file ends in the middle of the record", "the checksum of its length is wrong"
WRONG = "its checksum is wrong"
SKIP = "on_error='skip', or 'warn' for warnings."


def read(path: Any, start: int, policy: Policy, losses: LostSamples, max_bytes: int = RECORD) -> Iterator[list[bytes]]:
    """A file's records from number `start` on, in chunks of about one block."""
    reader = Reader(os.fspath(path), policy, losses, max_bytes)
    try:
        yield from reader.chunks(start)
    finally:
        reader.close()


class Reader:
    """Reads one file. `number` and `offset` are the current position, for errors."""

    def __init__(
        self, path: str, policy: Policy = "raise", losses: LostSamples | None = None, max_bytes: int = RECORD
    ) -> None:
        self.path, self.policy, self.losses, self._limit = path, policy, losses or LostSamples(), max_bytes
        self.number = self.offset = 0
        crc32c.checksum()  # raises if the package is missing, before anything is read
        self._raw = open_file(path)
        # A length may look like the first bytes of a compressed file; the checksum of the length decides.
        self._stream: Stream = opened(self._raw, path, HEAD, plain=_length_is_right)
        self.plain = not self._stream.packed
        self._size = size_of(self._raw) if self.plain else None
        self._fd = self._raw.fileno() if self.plain and not is_remote(path) else None  # can be read at any offset
        self._lengths: dict[int, int] = {}  # lengths seen so far, with their checksums, which were right
        _keep_memory()

    def chunks(self, start: int = 0) -> Iterator[list[bytes]]:
        start = self._jump(start)
        rest = b""
        while True:
            block, is_last = self._block(rest)
            if block is None:
                return
            records, used = self._parse(block)
            kept = records[start:]
            start -= len(records) - len(kept)
            if used is not None:
                self.offset += used
                rest = b""
                if self._fd is None or is_last or _is_long(block[used:]):
                    rest = bytes(block[used:])
            del block, records
            if kept:
                yield kept
            del kept  # frees the memory early, so that the next read reuses memory that is still in the cache
            if used is None:
                return
            if is_last:
                if rest:
                    self._lose(CUT_OFF)
                return
            if _is_long(rest):
                record, goes_on = self._long(rest)
                rest = b""
                if record is not None and not start:
                    yield [record]
                start = max(0, start - (record is not None))
                del record
                if not goes_on:
                    return

    def walk(self) -> list[int]:
        """The offset of each record, without reading the data. For plain files."""
        starts: list[int] = []
        while head := self._head():
            if len(head) < HEAD or not _length_is_right(head):
                self._lose(NO_LENGTH if len(head) == HEAD else CUT_OFF)
                break
            after = self.offset + HEAD + LENGTH.unpack_from(head)[0] + TAIL
            if self._size is None or after > self._size:
                self._lose(CUT_OFF)
                break
            starts.append(self.offset)
            self._raw.seek(after)
            self.number, self.offset = self.number + 1, after
        return starts

    def _head(self) -> bytes:
        try:
            return read_from(self._raw, HEAD)
        except DamageError as error:
            self._lose(str(error), rest_too=True)
            return b""

    def _jump(self, start: int) -> int:
        """Goes directly to record `start`, if the file has an index. Returns the number of records left to skip."""
        if not start or not self.plain or self.policy != "raise" or is_remote(self.path):
            return start
        offsets = read_index(self.path)
        if offsets is None or start >= len(offsets):
            return start
        self.number, self.offset = start, int(offsets[start])
        return 0

    def _read(self, size: int, offset: int) -> bytes | None:
        """`size` bytes at `offset` (in a remote or compressed file: the next bytes); None if they cannot be read."""
        try:
            return self._stream.read(size) if self._fd is None else os.pread(self._fd, size, offset)
        except DamageError as error:
            self._lose(str(error), rest_too=True)
        except OSError as error:
            self._lose(f"it cannot be read: {error.strerror or error}", rest_too=True)
        return None

    def _block(self, rest: bytes) -> tuple[memoryview | None, bool]:
        """The next block, with `rest` before it, and whether the file ends there; None if it cannot be read."""
        if self._fd is None:
            more = self._read(BLOCK, 0)
            return (None, True) if more is None else (memoryview(rest + more), not more)
        block, have = memoryview(_buffer()), 0
        try:
            while have < BLOCK and (got := os.preadv(self._fd, [block[have:]], self.offset + have)):
                have += got
        except OSError as error:
            self._lose(str(error), rest_too=True)
            return None, True
        return block[:have], have < BLOCK

    def _parse(self, block: memoryview) -> tuple[list[bytes], int | None]:
        """The whole records at the block's start, and their size in bytes; None if the rest of the file is lost."""
        records, stored, at = self._of_equal_length(block)
        stops, end, known, wrong = [], len(block), self._lengths, False
        while at + HEAD <= end:
            length, crc = BEFORE.unpack_from(block, at)
            if known.get(length) != crc and not self._is_right(block[at : at + HEAD]):
                wrong = True
                break
            stop = at + HEAD + length
            after = stop + TAIL
            if after > end:
                break
            records.append(bytes(block[at + HEAD : stop]))
            stops.append(stop)
            at = after
        if stops:
            places: Any = np.array(stops)[:, None] + np.arange(TAIL)
            stored = np.concatenate([stored, np.frombuffer(block, np.uint8)[places].view("<u4")[:, 0]])
        good, kept = len(records), records
        bad = np.flatnonzero(crc32c.masked_all(records) != stored)
        if len(bad):
            starts = np.cumsum([0, *(HEAD + len(record) + TAIL for record in records)])
            for number in bad.tolist():
                self._lose(WRONG, number=number, offset=int(starts[number]))
            lost = set(bad.tolist())
            kept = [record for number, record in enumerate(records) if number not in lost]
        self.number += good
        if wrong:
            self._lose(NO_LENGTH, offset=at, rest_too=True)
            return kept, None
        return kept, at

    def _of_equal_length(self, block: memoryview) -> tuple[list[bytes], crc32c.Words, int]:
        """Records of equal length at the block's start, with their stored checksums and their size in bytes. A fast
        path for files whose records all have one length."""
        if len(block) < HEAD or not self._is_right(block[:HEAD]):
            return [], NONE, 0
        length: int = LENGTH.unpack_from(block)[0]
        size = HEAD + length + TAIL
        count = len(block) // size
        if count < 2 or not length:
            return [], NONE, 0
        # Strided views, one record apart: lengths, checksums of the lengths, records, checksums of the records.
        lengths: Any = np.ndarray(count, "<u8", block, 0, (size,))
        crcs: Any = np.ndarray(count, "<u4", block, 8, (size,))
        equal = (lengths == length) & (crcs == crcs[0])
        if not equal.all():
            count = int(equal.argmin())
        records: list[bytes] = np.ndarray(count, f"V{length}", block, HEAD, (size,)).tolist()
        return records, np.ndarray(count, "<u4", block, HEAD + length, (size,)), count * size

    def _is_right(self, head: memoryview) -> bool:
        """Whether the checksum of a length is right. Results are remembered, because many records have one length."""
        if not _length_is_right(bytes(head)):
            return False
        if len(self._lengths) >= HEADS:
            self._lengths.clear()
        length, crc = BEFORE.unpack(head)
        self._lengths[length] = crc
        return True

    def _long(self, rest: bytes) -> tuple[bytes | None, bool]:
        """The record that begins with `rest` and is longer than a block (None if it is lost), and whether more records
        may follow. The length is checked first against the size of the file, then against the limit."""
        length: int = LENGTH.unpack_from(rest)[0]
        whole = HEAD + length + TAIL
        room = self._stream.left() if self._size is None else self._size - self.offset - len(rest)
        if room is not None and whole - len(rest) > room:
            self._lose("its length is more than the file has left", rest_too=True)
            return None, False
        if length > self._limit:
            what = f"{self._where()}: the record"
            error = too_large(what, length, self._limit, "max_bytes={}", otherwise=f"Or leave it out: {SKIP}")
            self.losses.lose(error, self.policy)
            goes_on = self._fd is not None or self._take(whole - len(rest), len(rest), None)
            self.number, self.offset = self.number + 1, self.offset + whole
            return None, goes_on
        body = io.BytesIO()
        body.write(memoryview(rest)[HEAD : HEAD + length])
        try:
            if not self._take(length - body.tell(), HEAD + body.tell(), body):
                return None, False
            record = body.getvalue()  # makes no copy
        except MemoryError:
            self._lose(f"there is not enough memory for its {length} bytes", rest_too=True)
            return None, False
        after = io.BytesIO()
        after.write(memoryview(rest)[HEAD + length :])
        if not self._take(TAIL - after.tell(), HEAD + length + after.tell(), after):
            return None, False
        right = crc32c.masked(record) == CRC.unpack(after.getvalue())[0]
        if not right:
            self._lose(WRONG)
        self.number, self.offset = self.number + 1, self.offset + whole
        return (record if right else None), True

    def _take(self, size: int, at: int, into: io.BytesIO | None) -> bool:
        """Reads `size` bytes, from `at` bytes after the record's start on, and returns whether the file had them.
        Memory grows with the bytes that were read, so a wrong length allocates nothing."""
        while size:
            part = self._read(min(STEP, size), self.offset + at)
            if not part:
                if part is not None:
                    self._lose(CUT_OFF)
                return False
            if into is not None:
                into.write(part)
            size, at = size - len(part), at + len(part)
        return True

    def _lose(self, why: str, *, number: int = 0, offset: int = 0, rest_too: bool = False) -> None:
        more = " The rest of the file is lost as well." if rest_too and self.policy != "raise" else ""
        error = DataError(
            f"{self._where(number, offset)}: {why}.{more}",
            advice=f"Write the file again, or leave such records out: {SKIP}",
        )
        self.losses.lose(error, self.policy)

    def _where(self, number: int = 0, offset: int = 0) -> str:
        return f"{self.path}: record {self.number + number}, {self._stream.place(self.offset + offset)}"

    def close(self) -> None:
        self._stream.close()


def _is_long(rest: bytes | memoryview) -> bool:
    """Whether `rest` begins a record that is longer than a block."""
    return len(rest) >= HEAD and LENGTH.unpack_from(rest)[0] > BLOCK - HEAD - TAIL


def _buffer() -> bytearray:
    """This thread's buffer, reused for every block of every file, so that it stays in a core's cache. The caller copies
    records out of the buffer before the next read."""
    made: bytearray | None = getattr(_own, "buffer", None)
    if made is None or len(made) != BLOCK:
        made = _own.buffer = bytearray(BLOCK)
    return made


@cache
def _keep_memory() -> None:
    """Makes the C library keep freed memory: after a large block was freed, it keeps twice that size. Otherwise the
    memory of records goes back to the system and is allocated again, which takes longer than reading the records."""
    bytes(16 << 20)


def _length_is_right(head: bytes) -> bool:
    return len(head) == HEAD and crc32c.masked(head[:8]) == CRC.unpack_from(head, 8)[0]


# -- writing -----------------------------------------------------------------------------------------------------------


def frame(record: bytes) -> tuple[bytes, bytes]:
    """The bytes before a record and after it."""
    length = LENGTH.pack(len(record))
    return length + CRC.pack(crc32c.masked(length)), CRC.pack(crc32c.masked(record))


class Writer:
    """Writes a TFRecord file under a temporary name and renames it when it is complete. Also writes its index: a line
    "offset bytes" for each record, a format that other programs use as well.

    with Writer("train-0.tfrecord") as writer:
        writer.write(record)
    """

    def __init__(self, path: str | os.PathLike[str], *, index: bool = True) -> None:
        crc32c.checksum()  # raises if the package is missing, before a file is made
        self.path, self.index = Path(path), index
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self._file: IO[bytes] = open(self._temporary, "wb")  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written: {error.strerror or error}.",
                advice="Give a path in a folder that you can write to.",
            ) from None
        self._lines: list[str] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    def write(self, record: bytes) -> None:
        head, tail = frame(record)
        self._file.write(head)
        self._file.write(record)
        self._file.write(tail)
        size = HEAD + len(record) + TAIL
        self._lines.append(f"{self.bytes} {size}\n")
        self.bytes += size

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._file.close()
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            return
        index = index_of(self.path)
        index.unlink(missing_ok=True)  # of an older file with this name
        os.replace(self._temporary, self.path)
        if self.index:
            temporary = index.with_name(f".{index.name}.{os.getpid()}")
            temporary.write_text("".join(self._lines))
            os.replace(temporary, index)


def index_of(path: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(path)}.index")


def read_index(path: str | os.PathLike[str]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The offsets of a file's records, from its index; None if there is no index, or it does not match the file."""
    index = index_of(path)
    try:
        size = os.stat(path).st_size
        if os.stat(index).st_size > LINE * (size // (HEAD + TAIL)):
            return None  # more lines than the file can have records
        pairs = np.array(index.read_bytes().split(), np.int64).reshape(-1, 2)
    except (OSError, ValueError, OverflowError):
        return None
    if not len(pairs):
        return pairs[:, 0] if not size else None
    starts, sizes = pairs[:, 0], pairs[:, 1]
    # Checks first that all numbers lie within the file, so that no sum overflows.
    whole = bool(np.all((sizes >= HEAD + TAIL) & (sizes <= size)) and np.all((starts >= 0) & (starts < size)))
    in_a_row = whole and starts[0] == 0 and bool(np.all(starts[:-1] + sizes[:-1] == starts[1:]))
    return starts if in_a_row and int(starts[-1] + sizes[-1]) == size else None
