"""Access rights of a record: only its owner may read it, unless `--share-record` is given.

The record's folder gets mode 0700 or, if shared, 0755 minus the umask. Each file and folder inside takes its rights
from its parent folder, whatever the umask is. So workers need no setting for this.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterator
from os import (  # bound here, before a script's file functions are redirected
    O_APPEND,
    O_CLOEXEC,
    O_CREAT,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_RDONLY,
    O_TRUNC,
    O_WRONLY,
    close,
    devnull,
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

_spare: list[int] = []  # descriptors in reserve
OWNER = 0o700
SHARED = 0o755  # as far as the umask allows


def create(path: Path | str, *, append: bool = False) -> int:
    """A descriptor that writes a file of a record, from its start or, with `append`, after its end."""
    mode = _mode_in(path) & 0o666
    flags = O_WRONLY | O_CREAT | O_CLOEXEC | (O_APPEND if append else O_TRUNC)
    try:
        descriptor = open_file(path, flags, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _spare:
            raise
        close(_spare.pop())
        descriptor = open_file(path, flags, mode)
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
    """A file of a record, open for writing; unbuffered with `append`."""
    spare = len(_spare)
    descriptor = create(path, append=append)
    try:
        with fdopen(descriptor, "ab", 0) if append else fdopen(descriptor, "wb") as file:
            yield cast(BinaryIO, file)
    finally:
        _spare_up_to(spare)  # the file's own descriptor is free again


@contextlib.contextmanager
def reserving(descriptors: int = 4) -> Iterator[None]:
    """Inside the block, files of a record can be opened although this process has no descriptor left."""
    before = len(_spare)
    _spare_up_to(before + descriptors)
    try:
        yield
    finally:
        while len(_spare) > before:
            close(_spare.pop())


def _spare_up_to(number: int) -> None:
    with contextlib.suppress(OSError):
        while len(_spare) < number:
            _spare.append(open_file(devnull, O_RDONLY | O_CLOEXEC))


def make_folder(path: Path) -> None:
    """Creates a folder inside a record, with its missing parents. A folder that exists stays as it is."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            mkdir(folder, _mode_in(folder))


def make_record(folder: Path, *, share: bool) -> None:
    """Creates the folder of a record. FileExistsError if the path exists; other OSErrors if the folder cannot be
    created; RecordError if it cannot be made private."""
    mkdir(folder, SHARED if share else OWNER)
    if not share:
        keep_private(folder)


def keep_private(folder: Path) -> None:
    """Removes other accounts' rights from a record's folder and its contents. If the folder is not a record yet, only
    the folder itself changes: its contents may belong to other people, and other accounts can no longer reach them.
    RecordError if the folder's rights cannot be changed."""
    here = open_file(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    try:
        if not _settle(here, OWNER):
            raise RecordError(
                f"{folder} cannot be kept from other accounts: its mode stays {stat.S_IMODE(fstat(here).st_mode):o}.",
                advice="Name a folder of your own on another disk (--record DIR), or let other accounts read the "
                "record: --share-record",
            )
    finally:
        close(here)
    if not (folder / "run.json").exists():
        return
    for _, folders, files, at in fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            told = stat_of(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISREG(told.st_mode) or stat.S_ISDIR(told.st_mode):
                with contextlib.suppress(OSError):  # the record's own folder keeps other accounts out, too
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
    """The mode of a new folder at this path: all rights for the owner, and the parent's rights for other accounts."""
    return OWNER | (stat_of(os_path.dirname(fspath(path)) or ".").st_mode & 0o055)


def _settle(descriptor: int, mode: int) -> bool:
    """Sets the mode of a file or folder. Returns whether no further rights remain: not every file system supports
    rights. Does not touch another user's file, or one that is not regular (a device in the place of a log)."""
    told = fstat(descriptor)
    if _rights(told) == mode:
        return True
    if told.st_uid == geteuid() and (stat.S_ISREG(told.st_mode) or stat.S_ISDIR(told.st_mode)):
        with contextlib.suppress(OSError):
            fchmod(descriptor, told.st_mode & 0o7000 | mode)
    return not _rights(fstat(descriptor)) & ~mode


def _rights(told: stat_result) -> int:
    return stat.S_IMODE(told.st_mode) & 0o777
