"""Where files are: on this machine, or behind an address (s3://, gs://, https://) that fsspec knows."""

from __future__ import annotations

import glob
import gzip
import os
import zlib
from collections.abc import Iterable
from typing import IO, Any, cast

from paceline.errors import DataError, UsageError

BLOCK = 1 << 20  # bytes of a compressed file that are read at once


def is_remote(path: str) -> bool:
    return "://" in path


def find(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Paths of a pattern, sorted so that all workers see the same; or of a list, as it is."""
    if not isinstance(pattern, (str, os.PathLike)):
        found = [os.fspath(path) for path in pattern]
    elif is_remote(os.fspath(pattern)):
        files, path = _fsspec().core.url_to_fs(os.fspath(pattern))
        found = sorted(files.unstrip_protocol(name) for name in files.glob(path))
    else:
        found = sorted(glob.glob(os.path.expanduser(os.fspath(pattern)), recursive=True))
    if not found:
        raise UsageError(f"Asked for the files {pattern}, but there are none.", advice="Look at the path: ls")
    return found


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """For reading, as it lies there."""
    path = os.fspath(path)
    try:
        if is_remote(path):
            return cast(IO[bytes], _fsspec().open(path, "rb").open())
        return open(path, "rb")
    except (OSError, ValueError, ImportError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path} cannot be opened: {told}.", advice="Look at the path and its rights.") from None


def size_of(file: IO[bytes]) -> int | None:
    """Bytes of a file, where that can be known without reading it."""
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, AttributeError, ValueError):
        size = getattr(file, "size", None)
        return int(size) if isinstance(size, int) else None


class Inflated:
    """A file of zlib's, read as what it holds."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._rest, self._made = file, b"", zlib.decompressobj()

    def read(self, size: int) -> bytes:
        found: list[bytes] = []
        while size > 0 and not self._made.eof:
            raw = self._rest or self._file.read(BLOCK)
            if not raw:
                raise EOFError("it ends before its compressed stream does")
            part = self._made.decompress(raw, size)
            self._rest = self._made.unconsumed_tail
            found.append(part)
            size -= len(part)
        return b"".join(found)

    def close(self) -> None:
        self._file.close()


def unpacked(file: IO[bytes], head: bytes) -> Any:
    """A file that is read as what it holds, by its first bytes: gzip's, zlib's, or plain."""
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if len(head) >= 2 and head[0] == 0x78 and (head[0] * 256 + head[1]) % 31 == 0:
        return Inflated(file)
    return file


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            "Asked for files behind an address, which needs the package fsspec.", advice="Type: pip install fsspec"
        ) from None
    return fsspec
