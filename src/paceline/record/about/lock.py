"""Who uses a record at this moment: the command that makes it holds a lock on its folder until the command ends.

The kernel gives the lock back when the process is gone, so that no stale lock is left. A lock of another host is not
seen; readers look at the age of the record's files, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hold(folder: Path) -> int | None:
    """Locks a record's folder until the descriptor that is returned is closed; None if the file system has no locks, or
    if another process holds it."""
    try:
        here = os.open(folder, _FOLDER)
    except OSError:
        return None
    try:
        fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(here)
        return None
    return here


def is_held(folder: Path) -> bool:
    """Whether a command of this host uses the record."""
    try:
        here = os.open(folder, _FOLDER)
    except OSError:
        return False
    try:
        fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(here)
    return False


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Holds the lock inside the block; False if somebody else does."""
    here = hold(folder)
    try:
        yield here is not None or not is_held(folder)
    finally:
        if here is not None:
            os.close(here)
