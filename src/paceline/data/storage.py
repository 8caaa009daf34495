"""Finds and opens files: on this machine, or at a remote address (s3://, gs://, https://) that fsspec supports."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from typing import IO, Any, cast

from paceline.errors import DataError, UsageError


def is_remote(path: str) -> bool:
    return "://" in path


def find(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """The paths that match a pattern, sorted so that all workers see the same order; or the paths of a list."""
    if not isinstance(pattern, (str, os.PathLike)):
        found = [os.fspath(path) for path in pattern]
    elif is_remote(os.fspath(pattern)):
        files, path = _fsspec().core.url_to_fs(os.fspath(pattern))
        found = sorted(files.unstrip_protocol(name) for name in files.glob(path))
    else:
        found = sorted(glob.glob(os.path.expanduser(os.fspath(pattern)), recursive=True))
    if not found:
        raise UsageError(f"{pattern} matches no file.", advice="Check the path: ls")
    return found


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a file for reading, without decompressing it."""
    path = os.fspath(path)
    try:
        if is_remote(path):
            return cast(IO[bytes], _fsspec().open(path, "rb").open())
        return open(path, "rb")
    except (OSError, ValueError, ImportError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path} cannot be opened: {reason}.", advice="Check the path and its permissions.") from None


def size_of(file: IO[bytes]) -> int | None:
    """The size of a file in bytes; None if it is not known without reading the file."""
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, AttributeError, ValueError):
        size = getattr(file, "size", None)
        return int(size) if isinstance(size, int) else None


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            "Remote files need the package fsspec, which is not installed.", advice="Type: pip install fsspec"
        ) from None
    return fsspec
