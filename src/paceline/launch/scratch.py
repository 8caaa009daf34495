"""A run's temporary folder, and the removal of temporary folders that dead runs left.

The folder holds a file `owner`. The launcher and its zygote (and so its workers) hold a shared lock on that file as
long as they live. A process that gets an exclusive lock on the file knows that every process of that run is gone. The
folder gets its final name only after the launcher holds the lock, so a run that is just starting never looks dead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "pl-"  # short: sockets lie in the folder, and a socket's path has 107 bytes at most
_UNNAMED = ".pl-"
_OWNER = "owner"


@contextlib.contextmanager
def scratch_folder(record: Path) -> Iterator[str]:
    """A new folder, removed when the block ends. `owner` holds the path of `record`, so that `remove_dead` can remove
    the scratch files in the record as well."""
    made = tempfile.mkdtemp(prefix=_UNNAMED)
    descriptor = os.open(os.path.join(made, _OWNER), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, os.fsencode(record))
        _lock(descriptor, fcntl.LOCK_SH)
        folder = os.path.join(os.path.dirname(made), _PREFIX + os.path.basename(made).removeprefix(_UNNAMED))
        os.rename(made, folder)
        made = folder
        yield folder
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def hold(folder: str) -> int:
    """Takes the shared lock in another process, too. Returns the descriptor that holds the lock (forks inherit it), or
    -1 if the folder is gone."""
    try:
        descriptor = os.open(os.path.join(folder, _OWNER), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    _lock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove(folder: str, record: str) -> None:
    """Removes a run's temporary files: its folder, and the files in the record's `scratch` that ranks above 0 wrote."""
    shutil.rmtree(os.path.join(record, "scratch"), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Removed:
    """The temporary folders of dead runs that were removed."""

    folders: list[str]

    @property
    def notice(self) -> str:
        """One line for the person at the terminal."""
        count = len(self.folders)
        runs = "a run that was" if count == 1 else f"{count} runs that were"
        return f"Removed the temporary files of {runs} killed: {', '.join(self.folders)}"


def remove_dead() -> Removed | None:
    """Removes the temporary files of this user's dead runs; None if there were none. Follows no link, and skips other
    users' folders."""
    parent, removed = tempfile.gettempdir(), []
    try:
        names = [name for name in os.listdir(parent) if name.startswith(_PREFIX)]
    except OSError:
        return None
    for name in sorted(names):
        folder = os.path.join(parent, name)
        with contextlib.suppress(OSError), _owned(folder) as owner:
            if not _lock(owner, fcntl.LOCK_EX):
                continue
            _remove_scratch_of(os.fsdecode(os.read(owner, 4096)))
            shutil.rmtree(folder)
            removed.append(folder)
    return Removed(removed) if removed else None


@contextlib.contextmanager
def _owned(folder: str) -> Iterator[int]:
    """Opens the owner file of a folder. Raises OSError if the folder or the file is not this user's, or is not one."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "belongs to another user", folder)
        owner = os.open(_OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
    try:
        if not stat.S_ISREG(os.fstat(owner).st_mode):
            raise OSError(errno.EINVAL, "not a file", folder)
        yield owner
    finally:
        os.close(owner)


def _remove_scratch_of(record: str) -> None:
    """Removes `scratch` in a record, only if the folder is a record and `scratch` belongs to this user."""
    folder = os.path.join(record, "scratch")
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if os.path.isabs(record) and is_own and os.path.isfile(os.path.join(record, "run.json")):
            shutil.rmtree(folder)


def _lock(descriptor: int, how: int) -> bool:
    """Tries to lock without waiting; returns whether that worked. It never works on a file system without locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
