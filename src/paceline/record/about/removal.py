"""Deletes records, and nothing else: no folder that is no record, not what a link leads to, no record in use."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from paceline.errors import RecordError
from paceline.record.about.lock import held

SIGNS = ("run.json", "origin.json")  # one of them is in every record


def size_on_disk(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk. Links are not followed."""
    total = 0
    for here, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
            except OSError:
                continue  # gone meanwhile
    return total


def is_record(folder: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and any((folder / name).is_file() for name in SIGNS)
    except OSError:
        return False


def remove(folder: Path) -> None:
    """Deletes a record. RecordError if it is none, if a command uses it, or if a file cannot be deleted."""
    if not is_record(folder):
        raise RecordError(f"{folder} is not a record: nothing was deleted.")
    with held(folder) as mine:
        if not mine:
            raise RecordError(f"{folder} is in use by a command that is running: it was not deleted.")
        # Renamed first, so that no half of a record is ever listed.
        gone = folder.with_name(f".deleted-{os.getpid()}-{folder.name}")
        try:
            os.rename(folder, gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise RecordError(
                f"{folder} cannot be deleted: {error.strerror or error}.",
                advice=f"What is left of it: {gone}" if gone.exists() else "",
            ) from error
