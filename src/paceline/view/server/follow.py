"""Follows a run in progress: what its files gained since the last look, as server-sent events.

Each visitor reads the files by itself, from the end, a bounded piece at a time; the run knows nothing of it.
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
from paceline.record.samples import FILE, Sample
from paceline.view.pages.logs import printable
from paceline.view.records.library import Library
from paceline.view.records.record import Opened
from paceline.view.records.steps import parse

EVERY = 0.5  # seconds between two looks
FIRST = 128 << 10  # bytes of a file at the first look: the last few hundred steps
MOST = 1 << 20  # bytes of a file at any later one
QUIET = 15.0  # seconds after which something is said, so that nobody takes the connection for dead
RANKS = 64
LINES = 14  # of the log
_sample = msgspec.json.Decoder(Sample)


class FileTail:
    """Whole lines that a file gained. A file that was begun anew is read from its start."""

    def __init__(self, path: Path | File) -> None:
        self._file, self._at = File.of(path), -1

    def take(self) -> bytes:
        """RecordError where it is no regular file."""
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
    """One visitor's look at one run."""

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name
        self._steps: dict[int, FileTail] = {}  # by rank, as they become known: a run is there before its workers are
        self._state = ""
        self._samples = FileTail(library.open(name).folder.file(FILE))

    def look(self) -> dict[str, Any] | None:
        """What is new; None where nothing is. Blocks: it reads files."""
        record = self._library.open(self._name)
        for rank in record.ranks[:RANKS]:
            self._steps.setdefault(rank, FileTail(record.folder.file(f"steps.rank{rank}.jsonl")))
        new = {rank: parse(tail.take(), record.folder) for rank, tail in sorted(self._steps.items())}
        first = next(iter(new.values()), [])
        told: dict[str, Any] = {
            "steps": [[step.step, step.total, _speed(step), step.loss] for step in first],
            "ranks": [_rank(rank, steps) for rank, steps in new.items() if steps],
            "devices": self._devices(),
            "log": self._last_lines(record) if first else [],
            "state": record.state,
            "started": record.run.started,
        }
        changed, self._state = told["state"] != self._state, told["state"]
        return told if any(new.values()) or told["devices"] or changed else None

    def _devices(self) -> list[list[Any]]:
        """The latest sample: what, and the share of it that is busy."""
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
    return step.samples / step.total if step.total > 0 else None


def _rank(rank: int, steps: list[Step]) -> list[Any]:
    """Rank, its last step, seconds of its own work and of communication."""
    split = [step for step in steps if step.split] or steps
    own = median(step.total - step.communication for step in split)
    return [rank, steps[-1].step, own, median(step.communication for step in split)]


async def follow(library: Library, record: Opened) -> AsyncIterator[bytes]:
    """Server-sent events until the run has ended. RecordError before the first of them where there is no run."""
    follower = await run_in_threadpool(Follower, library, record.name)
    silent = 0.0
    yield b"retry: 2000\n\n"
    while True:
        try:
            told = await run_in_threadpool(follower.look)
        except PacelineError as error:
            yield _event("trouble", {"message": error.message})
            return
        if told is not None:
            silent = 0.0
            yield _event("steps", told)
            if told["state"] != "running":
                yield _event("end", {"state": told["state"]})
                return
        elif silent >= QUIET:
            silent = 0.0
            yield b": still here\n\n"
        await anyio.sleep(EVERY)
        silent += EVERY


def _event(kind: str, told: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(told) + b"\n\n"
