"""Reads plain and compressed files (gzip, zlib) as a stream of decompressed bytes, in pieces of bounded size.

Only the bytes that are asked for are decompressed, so a large file takes little memory. Bytes before damage are
delivered; the next read then raises DamageError. Damage is a wrong byte, checksum or length, a truncated file, bytes
after the end, or a disk or network that fails.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import IO, Any

from paceline.data.size_limits import EXPANDS
from paceline.data.storage import open_file, size_of
from paceline.errors import DataError

LEAST, MOST = 1 << 10, 64 << 10  # compressed bytes that zlib is given at once
READY = 128 << 10  # bytes that are decompressed at once, even if fewer are asked for
GZIP, ZLIB = 31, 15  # zlib's numbers for the two formats (wbits)
NAMES = (".gz", ".gzip", ".tgz", ".zlib", ".zz")  # endings of compressed files


class DamageError(Exception):
    """A file is damaged from the current position on. The message is the reason."""


class Plain:
    """A file that is not compressed."""

    packed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._size = file, size_of(file)
        self.offset = 0  # of the next byte

    def read(self, size: int) -> bytes:
        found = read_from(self._file, size)
        self.offset += len(found)
        return found

    def left(self) -> int | None:
        """Bytes from here to the end, at most; None if unknown."""
        return None if self._size is None else max(0, self._size - self.offset)

    def place(self, offset: int) -> str:
        """The position of a byte, for an error message."""
        return f"at byte {offset}"

    def close(self) -> None:
        self._file.close()


class Inflated:
    """A file that is compressed with gzip or zlib."""

    packed = True

    def __init__(self, file: IO[bytes], kind: int) -> None:
        self._file, self._kind, self._size = file, kind, size_of(file)
        self._made = zlib.decompressobj(kind)
        self._raw, self._at, self._before = memoryview(b""), 0, 0  # compressed piece, position in it, bytes before it
        self._step = LEAST
        self._ready, self._given = b"", 0  # bytes decompressed in advance, and how many of them were delivered
        self._damage: str | None = None
        self._ended = False
        self.offset = 0  # of the next decompressed byte

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end or before damage."""
        parts, have = [], 0
        while have < size:
            part = self._ready[self._given : self._given + size - have]
            if part:
                self._given += len(part)
            else:
                wanted = size - have
                made = self._next(max(wanted, READY))
                if not made:
                    break
                part = made if len(made) <= wanted else made[:wanted]
                self._ready, self._given = (b"", 0) if len(made) <= wanted else (made, wanted)
            parts.append(part)
            have += len(part)
        if self._damage is not None and not have and size:
            raise DamageError(self._damage)
        self.offset += have
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def left(self) -> int | None:
        """Bytes from here to the end, at most, estimated from the size of the compressed file."""
        if self._size is None:
            return None
        packed = max(0, self._size - self._before - self._at)
        return len(self._ready) - self._given + (packed + LEAST) * EXPANDS

    def place(self, offset: int) -> str:
        return f"at byte {offset} of the decompressed data (byte {self._before + self._at} of the compressed file)"

    def close(self) -> None:
        self._file.close()

    def _next(self, size: int) -> bytes:
        """Up to `size` of the next bytes; nothing at the end or at damage."""
        while not self._ended and self._damage is None:
            try:
                if self._at == len(self._raw):
                    self._before += self._at
                    self._raw, self._at = memoryview(read_from(self._file, MOST)), 0
                found = self._inflate(size)
            except DamageError as error:
                self._damage = str(error)
                return b""
            if found:
                return found
        return b""

    def _inflate(self, size: int) -> bytes:
        if self._made.eof:
            self._begin_next()
            return b""
        piece = self._raw[self._at : self._at + self._step]
        self._step = min(MOST, 2 * self._step)
        state = self._made.copy()  # takes a thousandth of the time, and saves the bytes before damage
        try:
            found = self._made.decompress(piece, size)
        except zlib.error as error:
            found, used = _until_damage(state, piece, size)
            self._at += used
            self._damage = f"its compressed data is damaged: {str(error).rpartition(': ')[2]}"
            return found
        self._at += len(piece) - len(self._made.unconsumed_tail) - len(self._made.unused_data)
        if not piece and not found and not self._made.eof:
            raise DamageError("the file ends before its compressed data does")
        return found

    def _begin_next(self) -> None:
        """After a compressed part come the end of the file, padding of zeros, or (gzip) another part."""
        rest = bytes(self._raw[self._at : self._at + LEAST])
        self._ended = not rest
        self._at += len(rest) - len(rest.lstrip(b"\0"))
        if not rest.strip(b"\0"):
            return
        if self._kind != GZIP or self._raw[self._at] != 0x1F:
            raise DamageError("bytes follow the end of its compressed data")
        # Starts with small pieces, because zlib copies the rest of a piece each time a part ends in it.
        self._made, self._step = zlib.decompressobj(self._kind), LEAST


Stream = Plain | Inflated


def _until_damage(made: Any, piece: Any, size: int) -> tuple[bytes, int]:
    """The bytes before the damage in a piece, and how many compressed bytes they take: found in small steps, then byte
    by byte."""
    found, whole = bytearray(), len(piece)
    for step in (4096, 64):
        while len(found) < size:
            state = made.copy()
            try:
                part = made.decompress(piece, step)
            except zlib.error:
                made = state
                break
            if not part:
                break
            found += part
            piece = made.unconsumed_tail
    used = 0
    try:
        while used < len(piece):
            found += made.decompress(piece[used : used + 1])
            used += 1
    except zlib.error:
        pass
    return bytes(found), whole - len(piece) + used


def read_from(file: Any, size: int) -> bytes:
    """Up to `size` bytes. Any exception counts as damage, because fsspec's file systems raise their own types."""
    try:
        found: bytes = file.read(size)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DamageError(f"it cannot be read: {reason or type(error).__name__}") from None
    return found


def kind_of(head: bytes) -> int | None:
    """The compression of a file that begins with these bytes; None if the file is not compressed."""
    if head[:2] == b"\x1f\x8b":
        return GZIP
    if len(head) >= 2 and head[0] == 0x78 and (head[0] * 256 + head[1]) % 31 == 0:
        return ZLIB
    return None


def open_stream(path: str | os.PathLike[str], *, by_name: bool = False) -> Stream:
    """Opens a file, compressed or not, as its first bytes say. The caller closes the stream. `by_name`: a file with the
    ending of a compressed file counts as compressed, for formats that cannot tell text from a damaged header."""
    return opened(open_file(path), path, 2, by_name=by_name)


def opened(
    file: IO[bytes],
    path: str | os.PathLike[str],
    size: int,
    *,
    by_name: bool = False,
    plain: Callable[[bytes], bool] = lambda head: False,
) -> Stream:
    """The stream of an open file. `plain` tells from the first `size` bytes that the file is surely not compressed."""
    try:
        head = read_from(file, size)
        file.seek(0)
    except DamageError as error:
        file.close()
        raise DataError(f"{os.fspath(path)}, at byte 0: {error}.", advice="Check the path and the disk.") from None
    kind = None if plain(head) else kind_of(head)
    if kind is None and (by_name or not head) and promises_compression(path):
        kind = GZIP
    return Plain(file) if kind is None else Inflated(file, kind)


def promises_compression(path: str | os.PathLike[str]) -> bool:
    """Whether the file's name has the ending of a compressed file."""
    return os.fspath(path).lower().endswith(NAMES)
