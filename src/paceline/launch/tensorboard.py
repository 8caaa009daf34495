"""A run for TensorBoard: scalars of each step, written while the run goes on.

The launcher reads what rank 0's files in the record gained, whenever the workers say that they have made steps; workers
know nothing of it. TensorBoard itself is not needed to write what it reads (launch/tensorboard_events.py).
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

from paceline.errors import RecordError, UsageError
from paceline.launch.events import Event, Progress
from paceline.record.logged import Logged, logged_path
from paceline.record.schema import Step

PIECE = 1 << 20  # bytes of a record's file that are read at once
PARTS = ("data", "forward", "backward", "communication", "optimizer", "evaluation", "other")

Line = TypeVar("Line", Step, Logged)


def prove_board(folder: Path) -> None:
    """Makes the folder and writes something there. UsageError where that cannot be, or where a package is missing: ask
    before a run is started."""
    from paceline.data.formats import crc32c  # only where it was asked for: it imports numpy

    crc32c.checksum()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(65536))
    except OSError as error:
        # A file that is in the way "exists", which is true and no help.
        found = "it is no folder" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise UsageError(
            f"Asked for --tensorboard {folder}, which cannot be written: {found}.",
            advice="Name a folder that you may write: --tensorboard DIR",
        ) from error


@contextlib.contextmanager
def showing(folder: Path | None, record: Path, tell: Callable[[Event], None]) -> Iterator[Callable[[Event], None]]:
    """Round a launch: gives what to call with its events, which calls `tell` and writes what is new in the record to
    `folder`; without a folder, `tell` itself. RecordError at the end where the folder filled up: the run went on."""
    if folder is None:
        yield tell
        return
    board = Board(folder, record)

    def told(event: Event) -> None:
        tell(event)
        if isinstance(event, Progress):
            board.look()

    try:
        yield told
    finally:
        board.close()
    if board.trouble:
        raise RecordError(board.trouble, advice=f"The run itself is complete: its record is {record}.")


class Board:
    """The event file of one record: `folder/NAME/events.out.tfevents…`, where NAME is the record's: TensorBoard calls
    such a folder a run, and several may share `folder`. A record whose run is over is written by one `look`."""

    def __init__(self, folder: Path, record: Path) -> None:
        from paceline.launch import tensorboard_events  # only where it was asked for: it imports numpy

        self._format = tensorboard_events
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.0"
        self.path = folder / record.resolve().name / name
        self.trouble = ""  # why nothing is written any more
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
        """Writes what the record gained since the last look."""
        for steps in self._steps.pieces():
            self._write([self._format.encode(step.at, step.step, scalars(step)) for step in steps])
        for calls in self._logged.pieces():
            self._write([self._format.encode(call.at, call.step, _named(call)) for call in calls])

    def close(self) -> None:
        """Writes the rest. The run may have made its last steps since it was last heard of."""
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
            # What is trained is worth more than what is drawn of it: the run goes on.
            self.trouble = f"{self.path} could not be written to its end: {error.strerror}."


class _Lines(Generic[Line]):
    """The lines that a file gained, from its start on. A torn last one is left until it is whole."""

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
                return  # not there yet, or never
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                return
            self._at += len(whole)
            yield [line for text in whole.splitlines() if (line := self._decode(text)) is not None]

    def _decode(self, text: bytes) -> Line | None:
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError:
            return None  # torn by a full disk: readers of the record tell it


def scalars(step: Step) -> dict[str, float]:
    """What is drawn of a step, by tag. Only what is known: of short steps on a GPU most have not been split."""
    found: dict[str, float] = {}
    if step.loss is not None or not step.finite:
        found["loss"] = math.nan if step.loss is None else step.loss
    training = step.total - step.evaluation  # or an evaluation would look like a collapse
    if training > 0:
        found["samples_per_second"] = step.samples / training
    found["step_seconds/total"] = step.total
    if step.split:
        found |= {f"step_seconds/{part}": getattr(step, part) for part in PARTS}
    if step.noise is not None:
        found["noise_scale"] = step.noise
    return found


def _named(call: Logged) -> dict[str, float]:
    return {f"logged/{name}": math.nan if number is None else number for name, number in call.numbers.items()}
