"""A worker takes over the files of rank 0, which is lost (elastic runs): what it wrote to its own layer becomes real.

All workers run the same lines, so the layer holds what rank 0 had written, or was about to write. A file that is open
stays open: it is moved, not copied, or, from another file system, its descriptor is led to the copy. SQLite refuses to
write to a database that is no longer at its path, so a link stays there, and what SQLite keeps beside an open database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil

from paceline.script.output.overlay import Overlay

OF_SQLITE = ("-journal", "-wal", "-shm")  # after the database's name


def make_real(layer: Overlay) -> None:
    """Moves the layer's files to where the script sees them, and removes what the script has removed. Called with the
    real files in reach: see `real_files`."""
    beside = {path + end for path in _opened().values() for end in OF_SQLITE}
    for full in sorted(layer.gone):
        if not os.path.lexists(layer.own(full)):
            _remove(full)
    for folder, folders, names in os.walk(layer.root):
        real = folder[len(layer.root) :] or os.sep
        os.makedirs(real, exist_ok=True)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            own = os.path.join(folder, name)
            if own not in beside:
                _move(own, os.path.join(real, name))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _move(own: str, real: str) -> None:
    try:
        os.replace(own, real)
    except OSError:  # another file system
        opened = [descriptor for descriptor, path in _opened().items() if path == own]
        part = f"{real}.paceline"
        shutil.copy2(own, part, follow_symlinks=False)
        os.replace(part, real)
        for descriptor in opened:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
            copy = os.open(real, flags)
            os.lseek(copy, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(copy, descriptor, inheritable=False)
            os.close(copy)
        os.unlink(own)
    with contextlib.suppress(OSError):  # a disk without links
        os.symlink(real, own)


def _opened() -> dict[int, str]:
    """The paths of this process's open files, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found
