"""One record, opened for its pages: its files, read when they are asked for and kept while they do not change."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import RecordError
from paceline.record import Run, read_run
from paceline.record.samples import samples_path
from paceline.tables.records import Tables
from paceline.tables.trace import Trace, rank_in, read_trace
from paceline.view.steps import Steps, read_steps

LARGEST = 16 << 20  # bytes of a JSON document: those of ours have some kilobytes
MOST_SAMPLES = 64 << 20  # bytes of devices.jsonl: a month of samples
MOST_EVENTS = 8_000_000  # of all ranks' traces together: some 2 GB of memory while tables are made of them
MOST_WORKERS = 4096
ALIVE = 60.0  # seconds without a new line, after which a run without an outcome counts as killed


class BoundedTables(Tables):
    """Tables whose traces are refused where they would not fit."""

    @cached_property
    def traces(self) -> list[Trace]:
        left, found = MOST_EVENTS, []
        for path in self.paths:
            found.append(read_trace(path, most=left))
            left -= found[-1].events.height
        return sorted(found, key=lambda trace: trace.rank)


@dataclass(frozen=True)
class Opened:
    """A record. `name` is its path below the folder of records, and its address."""

    name: str
    folder: Path
    run: Run
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False)
    made: dict[str, Any] = field(default_factory=dict, compare=False)  # what pages computed, kept for the next one

    @classmethod
    def of(cls, name: str, folder: Path) -> Opened:
        """RecordError where there is no record, or none that fits in memory."""
        limit(folder / "run.json", LARGEST)
        try:
            run = read_run(folder)
        except RecursionError as error:
            raise RecordError(f"{folder / 'run.json'} is nested too deeply to be ours.") from error
        if len(run.workers) > MOST_WORKERS:
            raise RecordError(f"{folder / 'run.json'} speaks of {len(run.workers):,} workers: more than can be shown.")
        return cls(name, folder, run)

    @property
    def ranks(self) -> list[int]:
        return sorted({worker.rank for worker in self.run.workers})

    @cached_property
    def steps(self) -> Steps:
        return read_steps(self.folder, self.ranks)

    @cached_property
    def tables(self) -> BoundedTables:
        return BoundedTables(folder=self.folder, run=self.run, steps=self.steps.frame, paths=self.trace_paths)

    @cached_property
    def trace_paths(self) -> tuple[Path, ...]:
        found = self.folder.glob("trace.rank*.json.gz")
        return tuple(sorted(found, key=lambda path: (rank_in(path.name) or 0, path.name)))

    @cached_property
    def spans_paths(self) -> tuple[Path, ...]:
        found = self.folder.glob("timeline.rank*.jsonl")
        return tuple(sorted(found, key=lambda path: (rank_in(path.name) or 0, path.name)))

    @cached_property
    def verdict(self) -> dict[str, Any] | None:
        """What a verb that made trials found; None where it made none."""
        told = self._document("verdict.json")
        return told if isinstance(told, dict) else None

    @cached_property
    def findings(self) -> list[dict[str, Any]] | None:
        """What the rules said; None where nobody asked them."""
        told = self._document("findings.json")
        if isinstance(told, dict):
            told = told.get("findings")
        return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else None

    @cached_property
    def trials(self) -> list[str]:
        """The names of the records of its trials."""
        return [f"{self.name}/trials/{path.parent.name}" for path in sorted(self.folder.glob("trials/*/run.json"))]

    @property
    def has_samples(self) -> bool:
        path = samples_path(self.folder)
        return path.is_file() and path.stat().st_size <= MOST_SAMPLES

    @property
    def state(self) -> str:
        return state_of(self.run, self.folder)

    def _document(self, name: str) -> Any:
        path = self.folder / name
        if not path.is_file():
            return None
        limit(path, LARGEST)
        try:
            return msgspec.json.decode(path.read_bytes())
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RecordError(
                f"{path} is damaged: {error or 'it is nested too deeply'}.",
                advice="The record's other files may be well.",
            ) from error


def limit(path: Path, most: int) -> None:
    """RecordError where a file is larger than anything of ours: it is not read at all."""
    try:
        size = path.stat().st_size
    except OSError:
        return  # whoever reads it says what is wrong
    if size > most:
        raise RecordError(
            f"{path} has {size >> 20:,} MiB; nothing of ours has more than {most >> 20}.",
            advice="It is not read. If it is whole, make it smaller or look at it with another tool.",
        )


def state_of(run: Run, folder: Path) -> str:
    """running, ended, failed, interrupted or killed."""
    outcome = run.outcome
    if outcome is not None:
        return "interrupted" if outcome.interrupted else "failed" if outcome.exit_code else "ended"
    latest = run.started
    for path in (*folder.glob("steps.rank*.jsonl"), *folder.glob("log.rank*.txt"), *folder.glob("trials/*/run.json")):
        latest = max(latest, path.stat().st_mtime)
    return "running" if time.time() - latest < ALIVE else "killed"
