"""Follows a run in progress: sends the new lines of its files as server-sent events.

Each connection reads the files independently, from the end, a bounded number of bytes at a time. The run is not
affected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool

from paceline.errors import PacelineError, RecordError
from paceline.record import Step
from paceline.record.inside import File
from paceline.record.reader import parse_steps
from paceline.record.samples import FILE, Sample
from paceline.reports.wording import say
from paceline.tables.running import RunningFigures
from paceline.view.pages.logs import printable
from paceline.view.records.library import Library
from paceline.view.records.record import Opened

EVERY = 0.5  # seconds between two polls
FIRST = 128 << 10  # bytes of a file at the first poll: the last few hundred steps
MOST = 1 << 20  # bytes of a file at each later poll
QUIET = 15.0  # seconds without an update, after which a comment keeps the connection alive
RANKS = 64
LINES = 14  # last lines of the log
_sample = msgspec.json.Decoder(Sample)


class FileTail:
    """Reads the complete lines that were appended to a file. A truncated file is read from its start again."""

    def __init__(self, path: Path | File) -> None:
        self._file, self._at = File.of(path), -1

    def take(self) -> bytes:
        """The new lines. Raises RecordError if the path is not a regular file."""
        try:
            with self._file.open() as file:
                size = file.seek(0, 2)
                if self._at < 0:
                    self._at = max(0, size - FIRST)
                    cut = self._at > 0
                else:
                    cut = False
                    if size < self._at:
                        self._at = 0
                file.seek(self._at)
                data = file.read(MOST)
        except OSError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole[whole.find(b"\n") + 1 :] if cut else whole


class Follower:
    """What one connection has already sent of one run."""

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name
        self._steps: dict[int, FileTail] = {}  # by rank; run.json lists the workers only after the run has begun
        self._state = ""
        self._running = RunningFigures(library.open(name).folder)
        self._samples = FileTail(library.open(name).folder.file(FILE))

    def look(self) -> dict[str, Any] | None:
        """The update since the last call, or None. Blocks, because it reads files."""
        record = self._library.open(self._name)
        for rank in record.ranks[:RANKS]:
            self._steps.setdefault(rank, FileTail(record.folder.file(f"steps.rank{rank}.jsonl")))
        self._running.follow(record.ranks[:RANKS])
        new = {rank: parse_steps(tail.take(), record.folder) for rank, tail in sorted(self._steps.items())}
        first = next(iter(new.values()), [])
        update: dict[str, Any] = {
            "steps": [[step.step, step.total, _speed(step), step.loss] for step in first],
            "ranks": [_rank(rank, steps) for rank, steps in new.items() if steps],
            "devices": self._devices(),
            "figures": self._figures(record.state != "running"),
            "log": self._last_lines(record) if first else [],
            "state": record.state,
            "started": record.run.started,
        }
        changed, self._state = update["state"] != self._state, update["state"]
        return update if any(new.values()) or update["devices"] or changed else None

    def _figures(self, ended: bool) -> dict[str, Any]:
        """The figures of the live line of `paceline run`. `slowest`: the rank that stands out."""
        found = self._running.figures(now=ended)
        slow = found.slowest is not None and found.slowest.slow
        return {
            "samples_per_s": say(found.samples_per_s or None, "rate"),
            "step_time": say(found.step_time or None, "seconds"),
            "slowest": found.slowest.rank if found.slowest is not None and slow else None,
        }

    def _devices(self) -> list[list[Any]]:
        """Name and utilisation (0 to 1) of each device, from the latest sample."""
        for line in reversed(self._samples.take().splitlines()):
            try:
                sample = _sample.decode(line)
            except (msgspec.DecodeError, RecursionError):
                continue
            gpus = [[f"GPU {gpu.index}", gpu.utilisation] for gpu in sample.gpus if gpu.utilisation is not None]
            return gpus or [["CPU", sum(sample.cpu) / max(len(sample.cpu), 1)]]
        return []

    def _last_lines(self, record: Opened) -> list[str]:
        try:
            end, _ = record.folder.file(f"log.rank{record.ranks[0]}.txt").read_end(8192)
        except OSError:
            return []
        except RecordError as error:
            return [error.message]
        return printable(end.decode(errors="replace")).rstrip().splitlines()[-LINES:]


def _speed(step: Step) -> float | None:
    return step.samples / step.total if step.samples and step.total > 0 else None


def _rank(rank: int, steps: list[Step]) -> list[Any]:
    """Rank, last step, median seconds of own work, and of communication."""
    split = [step for step in steps if step.split] or steps
    own = median(step.total - step.communication for step in split)
    return [rank, steps[-1].step, own, median(step.communication for step in split)]


async def follow(library: Library, record: Opened) -> AsyncIterator[bytes]:
    """Server-sent events until the run ends. Raises RecordError before the first event if there is no such run."""
    follower = await run_in_threadpool(Follower, library, record.name)
    silent = 0.0
    yield b"retry: 2000\n\n"
    while True:
        try:
            update = await run_in_threadpool(follower.look)
        except PacelineError as error:
            yield _event("trouble", {"message": error.message})
            return
        if update is not None:
            silent = 0.0
            yield _event("steps", update)
            if update["state"] != "running":
                yield _event("end", {"state": update["state"]})
                return
        elif silent >= QUIET:
            silent = 0.0
            yield b": still here\n\n"
        await anyio.sleep(EVERY)
        silent += EVERY


def _event(kind: str, update: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(update) + b"\n\n"
