"""A worker takes over the files of rank 0, which is lost (elastic runs): what it wrote to its own layer becomes real.

All workers run the same lines, so the layer holds what rank 0 had written, or was about to write. A file that is open
stays open: it is moved, not copied, or, from another file system, its descriptor is led to the copy.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator

from paceline.script.output.overlay import Overlay


def make_real(layer: Overlay) -> None:
    """Moves the layer's files to where the script sees them, and removes what the script has removed. Called with the
    real files in reach: see `real_files`."""
    for full in sorted(layer.gone):
        if not os.path.lexists(layer.own(full)):
            _remove(full)
    for folder, folders, names in os.walk(layer.root):
        real = folder[len(layer.root) :] or os.sep
        os.makedirs(real, exist_ok=True)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            _move(os.path.join(folder, name), os.path.join(real, name))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _move(own: str, real: str) -> None:
    try:
        os.replace(own, real)
    except OSError:  # another file system
        opened = list(_descriptors_of(own))
        part = f"{real}.paceline"
        shutil.copy2(own, part, follow_symlinks=False)
        os.replace(part, real)
        for descriptor in opened:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
            copy = os.open(real, flags)
            os.lseek(copy, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(copy, descriptor, inheritable=False)
            os.close(copy)


def _descriptors_of(path: str) -> Iterator[int]:
    """This process's descriptors of a file."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                yield int(name)
        except OSError:
            continue
