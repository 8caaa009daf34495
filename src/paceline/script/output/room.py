"""Room for the files of a rank above 0: how much a disk has, and the way to another disk.

`system` are the functions of `os` as they were before the layer replaced them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

System = Mapping[str, Any]


def free_bytes(system: System, folder: str) -> int:
    """Bytes that may be written below a folder; -1 if none may."""
    try:
        told = system["statvfs"](folder)
    except OSError:
        return -1
    writable = system["access"](folder, os.W_OK | os.X_OK) and not told.f_flag & os.ST_RDONLY
    return int(told.f_bavail * told.f_frsize) if writable else -1


def copy_tree(system: System, opens: Callable[..., Any], source: str, target: str) -> None:
    """Copies a folder with the functions given: shutil would use those of the layer."""
    with contextlib.suppress(FileExistsError):
        system["mkdir"](target)
    with system["scandir"](source) as entries:
        for entry in entries:
            there = os.path.join(target, entry.name)
            if entry.is_symlink():
                system["symlink"](system["readlink"](entry.path), there)
            elif entry.is_dir():
                copy_tree(system, opens, entry.path, there)
            else:
                with opens(entry.path, "rb") as old, opens(there, "wb") as new:
                    shutil.copyfileobj(old, new)
