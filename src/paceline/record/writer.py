"""Writes a record: a line a step, appended and flushed, and `run.json` replaced as a whole.

A run that is killed at any moment leaves files that the reader accepts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from paceline.record.folder import unwritable
from paceline.record.logged import Logged
from paceline.record.noise import Noise
from paceline.record.pipelines import Reported
from paceline.record.private import create, write_file
from paceline.record.schema import Run, Step


class StepWriter:
    """Appends the steps of one worker. Each line is one write to an append-only descriptor: it is in the file
    when `append` returns, there is no buffer to lose, and a line is torn only by a full disk."""

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._encoder = msgspec.json.Encoder()
        try:
            self._file = create(self._path, append=True)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def append(self, step: Step | Noise | Logged | Reported) -> None:
        """Raises RecordError where the disk is full."""
        line = self._encoder.encode(step) + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise unwritable(self._path, error) from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_run(folder: Path, run: Run) -> None:
    """Replaces `run.json`: a reader sees the old one or the new one, never half of one."""
    _replace(folder / "run.json", run)


def write_tuning(folder: Path, told: dict[str, Any]) -> None:
    """Writes `tuning.json`: what was tried in the first steps, and what was kept."""
    _replace(folder / "tuning.json", told)


def _replace(path: Path, document: Any) -> None:
    fresh = path.with_name(f".{path.name}.new")
    try:
        write_file(fresh, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise unwritable(path, error) from error
