"""Writes a record: appends and flushes one line per step, and replaces `run.json` as a whole.

The reader accepts the files of a run that was killed at any moment.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from paceline.record.private import create, write_file
from paceline.record.schema import Run
from paceline.record.stopping import is_stopped, stop


class StepWriter:
    """Appends lines to a file of one worker: its steps, or others. Each call is one write to an append-only descriptor:
    the lines are in the file when `append` returns, no buffer can be lost, and only a full disk can tear a line: the
    last one, since recording then stops (`stopping`)."""

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._encoder = msgspec.json.Encoder()
        self._file = -1
        try:
            self._file = create(self._path, append=True)
        except OSError as error:
            stop(self._path, error)

    def append(self, *steps: msgspec.Struct) -> None:
        """Writes one line for each, unless recording has stopped. Where nobody listens, a full disk raises
        RecordError."""
        if self._file < 0 or is_stopped():
            return
        lines = self._encoder.encode_lines(steps)
        try:
            while lines:
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            stop(self._path, error)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_run(folder: Path, run: Run) -> None:
    """Replaces `run.json`: a reader sees the old file or the new one."""
    write_document(folder / "run.json", run)


def write_tuning(folder: Path, told: dict[str, Any]) -> None:
    """Writes `tuning.json`: the bucket sizes that were tried in the first steps, and the one that was kept."""
    write_document(folder / "tuning.json", told)


def write_document(path: Path, document: Any) -> None:
    """Replaces a file of JSON atomically. If it cannot be written, see `stopping`."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        write_file(fresh, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        os.replace(fresh, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        stop(path, error)
