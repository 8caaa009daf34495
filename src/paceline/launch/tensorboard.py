"""Writes each step's scalars for TensorBoard while the run goes on.

Whenever the workers report steps, the launcher reads the new lines of rank 0's files in the record; workers are not
involved. The event files are written without TensorBoard (launch/tensorboard_events.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from paceline.errors import UsageError
from paceline.launch.events import Event, Notice, Progress
from paceline.record.logged import Logged, logged_path
from paceline.record.scalars import scalars
from paceline.record.schema import Step

PIECE = 1 << 20  # bytes of a record's file to read at once

Line = TypeVar("Line", Step, Logged)


def prove_board(folder: Path) -> None:
    """Creates the folder and tries to write there; UsageError if that fails, or if a package is missing. Call it before
    a run starts."""
    from paceline.data.formats import crc32c  # imported here: it imports numpy

    crc32c.checksum()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(65536))
    except OSError as error:
        # The system's text for a file in the place of the folder, "File exists", would not help.
        found = "it is not a folder" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise UsageError(
            f"--tensorboard {folder} cannot be written: {found}.",
            advice="Name a folder that you may write to: --tensorboard DIR",
        ) from error


@contextlib.contextmanager
def showing(folder: Path | None, record: Path, tell: Callable[[Event], None]) -> Iterator[Callable[[Event], None]]:
    """Use it around a launch. Yields the function to call with the launch's events: it calls `tell` and writes the new
    lines of the record to `folder`. Without a folder, yields `tell` itself. A write that failed is told, once; the run
    goes on."""
    if folder is None:
        yield tell
        return
    board = Board(folder, record)

    def told(event: Event) -> None:
        tell(event)
        if isinstance(event, Progress):
            look(board.look)

    def look(take: Callable[[], None]) -> None:
        before = board.trouble
        take()
        if board.trouble and not before:
            tell(Notice(f"{board.trouble} The run goes on, and its record has all steps."))

    try:
        yield told
    finally:
        look(board.close)


class Board:
    """The event file of one record: `folder/NAME/events.out.tfevents…`, where NAME is the record's name. TensorBoard
    calls such a folder a run, and several runs may share `folder`. One `look` writes the whole record of a run that
    has ended."""

    def __init__(self, folder: Path, record: Path) -> None:
        from paceline.launch import tensorboard_events  # imports numpy, so only if --tensorboard is given

        self._format = tensorboard_events
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.0"
        self.path = folder / record.resolve().name / name
        self.trouble = ""  # why writing has stopped; empty: it has not
        self._steps = _Lines(record / "steps.rank0.jsonl", Step)
        self._logged = _Lines(logged_path(record), Logged)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written: {error.strerror}.", advice="Name another folder: --tensorboard DIR"
            ) from error
        self._write([tensorboard_events.encode_first(time.time())])

    def look(self) -> None:
        """Writes the lines that were added to the record since the last look."""
        for steps in self._steps.pieces():
            self._write([self._format.encode(step.at, step.step, scalars(step)) for step in steps])
        for calls in self._logged.pieces():
            self._write([self._format.encode(call.at, call.step, _named(call)) for call in calls])

    def close(self) -> None:
        """Writes the remaining lines: the run may have made steps after its last Progress event."""
        self.look()
        self._file.close()

    def _write(self, events: list[bytes]) -> None:
        if self.trouble:
            return
        data = b"".join(map(self._format.framed, events))
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            # Training is worth more than its charts: the run goes on.
            self.trouble = f"{self.path} is incomplete, because a write failed: {error.strerror}."


class _Lines(Generic[Line]):
    """Reads a growing file line by line. A torn last line is read once it is complete."""

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self._path, self._at = path, 0
        self._decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(kind)

    def pieces(self) -> Iterator[list[Line]]:
        while True:
            try:
                with open(self._path, "rb") as file:
                    file.seek(self._at)
                    data = file.read(PIECE)
            except OSError:
                return  # the file does not exist, perhaps only yet
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                return
            self._at += len(whole)
            yield [line for text in whole.splitlines() if (line := self._decode(text)) is not None]

    def _decode(self, text: bytes) -> Line | None:
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError:
            return None  # torn by a full disk: the record's own readers report that


def _named(call: Logged) -> dict[str, float]:
    return {f"logged/{name}": math.nan if number is None else number for name, number in call.numbers.items()}
