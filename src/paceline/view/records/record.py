"""One record, opened for its pages: its files, read when they are asked for and kept while they do not change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import anyio
import msgspec

from paceline.errors import PacelineError, RecordError
from paceline.record import Run, read_run
from paceline.record.inside import File, Folder
from paceline.record.samples import FILE as SAMPLES
from paceline.record.samples import LARGEST as MOST_SAMPLES
from paceline.tables.records import Tables, trace_files
from paceline.tables.trace.columns import Trace, rank_in, read_trace
from paceline.tables.trace.steps import windows
from paceline.tables.trace.time_limit import within
from paceline.view.records.steps import Steps, read_steps
from paceline.view.server.limits import ViewLimits

LARGEST = 16 << 20  # bytes of a JSON document: those of ours have some kilobytes
MOST_WORKERS = 4096
ALIVE = 60.0  # seconds without a new line, after which a run without an outcome counts as killed

T = TypeVar("T")


@dataclass(frozen=True)
class BoundedTables(Tables):
    """Tables whose traces are refused where they would take too long, or not fit."""

    record: Opened | None = None

    @property
    def traces(self) -> list[Trace]:
        assert self.record is not None
        return self.record.once("Reading the traces", self._read)

    def _read(self) -> list[Trace]:
        assert self.record is not None
        limits, found = self.record.limits, []
        left = limits.events
        for path in self.paths:
            trace = read_trace(path, most=left, more=limits.more_events)
            left -= trace.events.height + trace.memory.height
            devices = trace.device["device"].n_unique() + trace.memory["device"].n_unique()
            limits.prove(f"{path} has many devices", devices, limits.devices)
            limits.prove(f"{path} has many steps", windows(trace).height, limits.steps)
            found.append(trace)
        return sorted(found, key=lambda trace: trace.rank)


@dataclass(frozen=True)
class Opened:
    """A record. `name` is its path below the folder of records, and its address. Its files are opened through `folder`
    only."""

    name: str
    folder: Folder
    run: Run
    limits: ViewLimits = ViewLimits()  # noqa: RUF009
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False)
    turn: anyio.Lock = field(default_factory=anyio.Lock, compare=False)  # of visitors who want its traces
    made: dict[str, tuple[str, Any]] = field(
        default_factory=dict, compare=False
    )  # what pages computed, kept for the next one

    @classmethod
    def of(cls, name: str, folder: Folder, limits: ViewLimits | None = None) -> Opened:
        """RecordError where there is no record, or none that fits in memory."""
        try:
            run = read_run(folder, most=LARGEST)
        except RecursionError as error:
            raise RecordError(f"{folder.file('run.json')} is nested too deeply to be ours.") from error
        if len(run.workers) > MOST_WORKERS:
            raise RecordError(
                f"{folder.file('run.json')} speaks of {len(run.workers):,} workers: more than can be shown."
            )
        return cls(name, folder, run, limits or ViewLimits())

    def once(self, what: str, make: Callable[[], T], *, instead: str = "") -> T:
        """What it makes, in the time that a page may take; made once, and so is a refusal. `what` begins a sentence.
        Of several with the same `instead`, only the last one is kept."""
        with self.lock:
            key, known = self.made.get(instead or what, ("", None))
            if key != what:
                known = self._try(what, make)
                self.made[instead or what] = (what, known)
        if isinstance(known, PacelineError):
            raise type(known)(known.message, advice=known.advice)
        value: T = known[0]
        return value

    def _try(self, what: str, make: Callable[[], T]) -> tuple[T] | PacelineError:
        try:
            with within(self.limits.seconds, f"{what} of {self.name}", self.limits.more_time):
                return (make(),)
        except PacelineError as error:
            # Without its traceback, which would keep all that was read so far.
            return type(error)(error.message, advice=error.advice)

    @property
    def events(self) -> int:
        """That are in memory."""
        known = self.made.get("Reading the traces", ("", None))[1]
        return sum(trace.events.height for trace in known[0]) if isinstance(known, tuple) else 0

    @property
    def ranks(self) -> list[int]:
        return sorted({worker.rank for worker in self.run.workers})

    @cached_property
    def steps(self) -> Steps:
        return read_steps(self.folder, self.ranks)

    @cached_property
    def tables(self) -> BoundedTables:
        return BoundedTables(
            folder=self.folder, run=self.run, steps=self.steps.frame, paths=self.trace_paths, record=self
        )

    @cached_property
    def trace_paths(self) -> tuple[File, ...]:
        return trace_files(self.folder)

    @cached_property
    def spans_paths(self) -> tuple[File, ...]:
        found = self.folder.names("timeline.rank*.jsonl")
        return tuple(map(self.folder.file, sorted(found, key=lambda name: (rank_in(name) or 0, name))))

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
        return [f"{self.name}/trials/{name}" for name in trials_in(self.folder)]

    @property
    def has_samples(self) -> bool:
        told = self.folder.file(SAMPLES).stat()
        return told is not None and told.st_size <= MOST_SAMPLES

    def prove_samples(self) -> None:
        """NotRegularError where the samples are no file: rules do without them, the pages that show them don't."""
        self.folder.file(SAMPLES).open().close()

    @property
    def state(self) -> str:
        return state_of(self.run, self.folder)

    def _document(self, name: str) -> Any:
        file = self.folder.file(name)
        try:
            return msgspec.json.decode(file.read(LARGEST))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(f"{file} cannot be read: {error.strerror or error}.") from error
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RecordError(
                f"{file} is damaged: {error or 'it is nested too deeply'}.",
                advice="The record's other files may be well.",
            ) from error


def trials_in(folder: Folder) -> list[str]:
    """Folders below its `trials` that hold a record; nothing where that is no folder."""
    trials = folder.folder("trials")
    try:
        return [name for name in trials.names("[!.]*") if _holds_record(trials.folder(name))]
    except (OSError, RecordError):
        return []


def _holds_record(folder: Folder) -> bool:
    try:
        return folder.file("run.json").exists()
    except RecordError:
        return False  # a link, or a file


def state_of(run: Run, folder: Folder) -> str:
    """running, ended, failed, interrupted or killed."""
    outcome = run.outcome
    if outcome is not None:
        return "interrupted" if outcome.interrupted else "failed" if outcome.exit_code else "ended"
    latest = run.started
    names = (*folder.names("steps.rank*.jsonl"), *folder.names("log.rank*.txt"))
    files = [*map(folder.file, names), *(folder.folder("trials", name).file("run.json") for name in trials_in(folder))]
    for file in files:
        told = file.stat()
        latest = max(latest, told.st_mtime if told is not None else 0.0)
    return "running" if time.time() - latest < ALIVE else "killed"
