"""The events that `launch` passes to its caller while the workers run, and how it passes them on."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Literal, Self

import msgspec

from paceline import threads
from paceline.record.schema import Step

IN_MEMORY = 4 << 20  # bytes of output that wait in memory; more wait on the disk
PIECE = 65536  # bytes of output that are told at once


class Output(msgspec.Struct, tag=True, frozen=True):
    """Rank 0 wrote to standard output or standard error; in an elastic run, any worker."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest step of each rank that has made one. At most five events per second."""

    steps: dict[int, Step]


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the person at the terminal. No text comes twice in a run."""

    text: str
    mod: str = ""  # the mod that tells of its own settings


@dataclass(frozen=True, slots=True)
class Stall:
    """Workers have waited for other workers for too long. `text` is the report, ready to print. Once per stall."""

    text: str


@dataclass(frozen=True, slots=True)
class Asking:
    """Whether the script waits for standard input: somebody is at a prompt, and nothing may be drawn over it."""

    now: bool


@dataclass(frozen=True, slots=True)
class Checking:
    """What Paceline has been checking for long, during which there is no step; empty when the check has ended."""

    what: str


Event = Output | Progress | Notice | Stall | Asking | Checking


@dataclass(slots=True)
class _OnDisk:
    """Output that waits in the temporary file."""

    rank: int
    stream: Literal["stdout", "stderr"]
    at: int
    size: int


class Teller:
    """Passes events on from a thread of its own: `with Teller(on_event) as tell:`. A terminal that does not read
    (Ctrl-S, `| less`) blocks who writes to it, and the loop that watches a run must go on meanwhile.

    The end of the block waits until everything was told. What `on_event` raises, the loop raises, or the end of the
    block."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._changed = threading.Condition()  # guards all below
        self._events: deque[Event | _OnDisk] = deque()
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._size = 0  # of the file
        self._over = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error
            if isinstance(event, Progress) and self._events and isinstance(self._events[-1], Progress):
                self._events[-1] = event  # only the latest is of interest
            elif not isinstance(event, Output):
                self._events.append(event)
            elif self._in_memory + len(event.data) <= IN_MEMORY or not self._to_disk(event):
                self._in_memory += len(event.data)
                self._events.append(event)
            self._changed.notify()

    def __enter__(self) -> Self:
        self._thread = threads.start("events", self._serve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()
        if self._file is not None:
            self._file.close()
        if self._error is not None and error is None:
            raise self._error

    def _serve(self) -> None:
        try:
            while (event := self._next()) is not None:
                self._on_event(event)
        except BaseException as error:
            with self._changed:
                self._error = error
            threads.hand_over(error)

    def _next(self) -> Event | None:
        """Waits for the next event; None if there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._over)
            if not self._events:
                return None
            event = self._events[0]
            if isinstance(event, _OnDisk):
                return self._from_disk(event)
            self._events.popleft()
            self._in_memory -= len(event.data) if isinstance(event, Output) else 0
            return event

    def _to_disk(self, output: Output) -> bool:
        """Whether this output could be written to the disk, to be told from there."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
            size = os.pwrite(self._file.fileno(), output.data, self._size)
        except OSError:
            return False
        if size < len(output.data):
            return False  # the disk is full
        last = self._events[-1] if self._events else None
        if isinstance(last, _OnDisk) and (last.rank, last.stream) == (output.rank, output.stream):
            last.size += size
        else:
            self._events.append(_OnDisk(output.rank, output.stream, self._size, size))
        self._size += size
        return True

    def _from_disk(self, found: _OnDisk) -> Output:
        assert self._file is not None
        data = os.pread(self._file.fileno(), min(found.size, PIECE), found.at)
        found.at += len(data)
        found.size -= len(data)
        if not found.size:
            self._events.popleft()
            if found.at == self._size:  # all was told
                self._size = 0
                self._file.truncate(0)
        return Output(found.rank, found.stream, data)
