"""Compares the files of a checkpoint with their checksums. Works without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paceline.checkpoint.manifest import StoredFile, damaged
from paceline.errors import CheckpointError


def digest(path: Path) -> str:
    """The file's checksum. Lets other threads run meanwhile."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault_of(folder: Path, file: StoredFile) -> str:
    """What is wrong with a file, as a clause that follows its name; empty if the file is intact."""
    path = folder / file.path
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"has {size} bytes instead of {file.bytes}"
        return "" if digest(path) == file.sha256 else "does not have the content that was written: its checksum differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def refuse_faults(folder: Path, faults: dict[str, str]) -> None:
    """Raises CheckpointError for the first of these faulty files, by path."""
    for path, fault in sorted(faults.items()):
        if fault:
            others = len([one for one in faults.values() if one]) - 1
            raise CheckpointError(
                damaged(folder / path, fault).message + (f" {others} more files are damaged." if others else ""),
                advice=damaged(folder / path, fault).advice,
            )
