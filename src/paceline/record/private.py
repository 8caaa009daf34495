"""Who may read a record: its owner, and others only where that was asked for.

The record's folder decides. It is made for its owner alone (0700), or, shared, as the umask has it; whatever is made
inside it may be read by those who may read the folder it lies in, and by nobody else, whatever the umask is. So no
worker has to be told.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from os import (  # as they are before a script's files are redirected
    O_APPEND,
    O_CLOEXEC,
    O_CREAT,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_RDONLY,
    O_TRUNC,
    O_WRONLY,
    close,
    fchmod,
    fdopen,
    fspath,
    fstat,
    fwalk,
    geteuid,
    mkdir,
    stat_result,
)
from os import open as open_file
from os import path as os_path
from os import stat as stat_of
from pathlib import Path
from typing import BinaryIO, cast

from paceline.errors import RecordError

OWNER = 0o700
SHARED = 0o755  # as far as the umask allows


def create(path: Path | str, *, append: bool = False) -> int:
    """A descriptor that writes a file of a record, from its start or behind its end."""
    mode = _mode_in(path) & 0o666
    descriptor = open_file(path, O_WRONLY | O_CREAT | O_CLOEXEC | (O_APPEND if append else O_TRUNC), mode)
    try:
        _settle(descriptor, mode)
    except BaseException:
        close(descriptor)
        raise
    return descriptor


def write_file(path: Path, data: bytes) -> None:
    """Writes a file of a record."""
    with opened(path) as file:
        file.write(data)


@contextlib.contextmanager
def opened(path: Path, *, append: bool = False) -> Iterator[BinaryIO]:
    """A file of a record, open for writing, without a buffer of its own where it appends."""
    descriptor = create(path, append=append)
    with fdopen(descriptor, "ab", 0) if append else fdopen(descriptor, "wb") as file:
        yield cast(BinaryIO, file)


def make_folder(path: Path) -> None:
    """Makes a folder inside a record, and those above it that are missing. One that is there stays as it is."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            mkdir(folder, _mode_in(folder))


def make_record(folder: Path, *, share: bool) -> None:
    """Makes the folder of a record. FileExistsError where something is there; other OSErrors where it cannot be made;
    RecordError where it cannot be made private."""
    mkdir(folder, SHARED if share else OWNER)
    if not share:
        keep_private(folder)


def keep_private(folder: Path) -> None:
    """Takes other accounts' rights off a record's folder and all that is in it. A folder that is no record yet may hold
    other people's things: these are behind its door, and stay as they are. RecordError where that cannot be done."""
    here = open_file(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    try:
        if not _settle(here, OWNER):
            raise RecordError(
                f"{folder} cannot be kept from other accounts: its mode stays {stat.S_IMODE(fstat(here).st_mode):o}.",
                advice="Name a folder of your own on another disk (--record DIR), or let others read it: "
                "--share-record",
            )
    finally:
        close(here)
    if not (folder / "run.json").exists():
        return
    for _, folders, files, at in fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            told = stat_of(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISREG(told.st_mode) or stat.S_ISDIR(told.st_mode):
                with contextlib.suppress(OSError):  # behind the folder's own door it is safe as well
                    _take_rights(name, at)


def _take_rights(name: str, at: int) -> None:
    descriptor = open_file(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, dir_fd=at)
    try:
        told = fstat(descriptor)
        if stat.S_ISREG(told.st_mode) or stat.S_ISDIR(told.st_mode):
            _settle(descriptor, stat.S_IMODE(told.st_mode) & 0o700)
    finally:
        close(descriptor)


def _mode_in(path: Path | str) -> int:
    """Rights of a folder that is made there: the owner's, and others' as they have them in the folder above."""
    return OWNER | (stat_of(os_path.dirname(fspath(path)) or ".").st_mode & 0o055)


def _settle(descriptor: int, mode: int) -> bool:
    """Gives a file or folder these rights. Whether it has no others: not every disk knows rights. What is somebody
    else's, or no file at all (a device that stands for a log), is left alone."""
    told = fstat(descriptor)
    if _rights(told) == mode:
        return True
    if told.st_uid == geteuid() and (stat.S_ISREG(told.st_mode) or stat.S_ISDIR(told.st_mode)):
        with contextlib.suppress(OSError):
            fchmod(descriptor, told.st_mode & 0o7000 | mode)
    return not _rights(fstat(descriptor)) & ~mode


def _rights(told: stat_result) -> int:
    return stat.S_IMODE(told.st_mode) & 0o777
