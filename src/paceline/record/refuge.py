"""Where a record goes whose own place cannot be written: to a temporary folder, and the run goes on."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from pathlib import Path

from paceline.errors import RecordError
from paceline.record.folder import new_folder, unwritable

# The state of a disk, and not a path that was typed wrongly.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


def new_refuge() -> Path:
    """A new folder for records, which stays."""
    try:
        return Path(tempfile.mkdtemp(prefix="paceline-runs-"))
    except OSError as error:
        raise unwritable(Path(tempfile.gettempdir()), error) from error


def needs_refuge(error: RecordError) -> bool:
    """Whether another disk can help."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _DISK


def new_folder_somewhere(parent: Path, name: str, *, tell: Callable[[str], None], share: bool = False) -> Path:
    """Like `new_folder`; on a disk that is full or that may not be written, in a temporary folder, which `tell` hears
    of."""
    try:
        return new_folder(parent, name, share=share)
    except RecordError as error:
        if not needs_refuge(error):
            raise
        folder = new_folder(new_refuge(), name, share=share)
        tell(f"{error.message} The record is kept in {folder} instead.\n{error.advice}".rstrip())
        return folder
