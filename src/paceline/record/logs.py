"""A worker's log: what it prints, in the record. A log that can no longer be written is no error of the script."""

from __future__ import annotations

import io
import os
from os import dup2  # bound here, as in `private`
from os import open as open_file
from pathlib import Path
from typing import Any

from paceline.record.folder import log_path
from paceline.record.private import create
from paceline.record.stopping import stop


def open_log(folder: Path | str, rank: int) -> int:
    """A descriptor that appends to a worker's log, or one that leads nowhere if that cannot be opened (`stopping`)."""
    return open_log_at(log_path(folder, rank))


def open_log_at(path: Path) -> int:
    """The same for another process's log."""
    try:
        return create(path, append=True)
    except OSError as error:
        stop(path, error)
        return _nowhere()


class LogFile(io.FileIO):
    """A standard stream that is a log. After a write that failed, it leads nowhere, also for this process's children:
    a `print` of the script must not raise because the record's disk is full."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._path = path

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            nothing = _nowhere()
            dup2(nothing, self.fileno())
            os.close(nothing)
            stop(self._path, error)
            return len(memoryview(data).cast("B"))


def _nowhere() -> int:
    return open_file(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
