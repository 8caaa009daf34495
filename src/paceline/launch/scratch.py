"""A run's temporary folder, and the removal of those that dead runs left.

The folder holds a file `owner`, on which the launcher and its zygote (and so its workers) hold a shared lock as long
as they live. Whoever can lock that file for itself alone knows that nobody of that run lives any more. The folder gets
its name only when the lock is held, so a run that is just starting is never taken for a dead one.
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

_PREFIX = "pl-"  # short: paths of sockets lie below it, and may have 107 bytes
_UNNAMED = ".pl-"
_OWNER = "owner"


@contextlib.contextmanager
def scratch_folder(record: Path) -> Iterator[str]:
    """A new folder, gone when the block ends. `record` is written down in it: a dead run's scratch files lie there."""
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
    """Holds the lock in another process, too: gives the descriptor that does, which forks inherit; -1 where the folder
    has gone."""
    try:
        descriptor = os.open(os.path.join(folder, _OWNER), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    _lock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove(folder: str, record: str) -> None:
    """All that a run keeps for its own time only: its folder, and what ranks above 0 wrote instead of real files."""
    shutil.rmtree(os.path.join(record, "scratch"), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Removed:
    """What was left of dead runs."""

    folders: list[str]

    @property
    def notice(self) -> str:
        """One line for the person at the terminal."""
        count = len(self.folders)
        runs = "a run that was" if count == 1 else f"{count} runs that were"
        return f"Removed the temporary files of {runs} killed: {', '.join(self.folders)}"


def remove_dead() -> Removed | None:
    """Removes what dead runs of this user left; None where nothing was. Follows no link, and touches nobody else's."""
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
    """The owner file of one of this user's own folders; OSError where it is none."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "another user's", folder)
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
    """Only where it looks like a record's, and is this user's."""
    folder = os.path.join(record, "scratch")
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if os.path.isabs(record) and is_own and os.path.isfile(os.path.join(record, "run.json")):
            shutil.rmtree(folder)


def _lock(descriptor: int, how: int) -> bool:
    """Whether it could be had, at once. A file system that knows no locks grants none."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
