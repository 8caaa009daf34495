"""One record, opened for its pages: reads the record's files on demand, and caches what it read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import anyio
import msgspec
import polars as pl

from paceline.errors import PacelineError, RecordError
from paceline.record import Run, Step
from paceline.record.about.labels import Labels, read_labels
from paceline.record.about.origin import Origin, read_origin
from paceline.record.inside import File, Folder
from paceline.record.samples import FILE as SAMPLES
from paceline.record.samples import LARGEST as MOST_SAMPLES
from paceline.tables.figures import Figures, columns_in, figures, kept_figures
from paceline.tables.records import STEPS, Tables, aligned, trace_files
from paceline.tables.trace.columns import Trace, arrange, rank_in
from paceline.tables.trace.kept import keep, read_kept
from paceline.tables.trace.parallel import read_traces
from paceline.tables.trace.steps import windows
from paceline.tables.trace.time_limit import within
from paceline.view.records.limits import ViewLimits
from paceline.view.records.reading import FROM_ELSEWHERE, LARGEST, read_bounded_run, read_tail, state_of, trials_in

TOGETHER = 4  # copies of traces that are read at the same time

T = TypeVar("T")


@dataclass(frozen=True)
class BoundedTables(Tables):
    """Tables that reject traces which exceed the limits of time or memory."""

    record: Opened | None = None

    @property
    def traces(self) -> list[Trace]:
        assert self.record is not None
        return self.record.once("Reading the traces", self._read)

    def _read(self) -> list[Trace]:
        assert self.record is not None
        limits, found = self.record.limits, []
        left = limits.events
        with ThreadPoolExecutor(TOGETHER) as pool:
            copies = list(pool.map(partial(read_kept, most=left // max(len(self.paths), 1)), self.paths))
        for path, kept in zip(self.paths, copies, strict=True):
            read = [kept] if kept is not None else read_traces(path, most=left, more=limits.more_events)
            for trace in read:
                left -= trace.events.height + trace.memory.height
                devices = trace.device["device"].n_unique() + trace.memory["device"].n_unique()
                limits.prove(f"{path} has too many devices", devices, limits.devices)
                limits.prove(f"{path} has too many steps", windows(trace).height, limits.steps)
                found.append(trace)
            if kept is None and len(read) == 1 and self.record.run.verb != FROM_ELSEWHERE:
                keep(read[0])
        return aligned(arrange(found), self.record.run)


@dataclass(frozen=True)
class Opened:
    """A record. `name` is the record's path below the folder of records, and part of its address. All files are
    opened through `folder`."""

    name: str
    folder: Folder
    run: Run
    limits: ViewLimits = ViewLimits()  # noqa: RUF009
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False)
    turn: anyio.Lock = field(default_factory=anyio.Lock, compare=False)  # held while a page reads the traces
    made: dict[str, tuple[str, Any]] = field(default_factory=dict, compare=False)  # results that pages share

    @classmethod
    def of(cls, name: str, folder: Folder, limits: ViewLimits | None = None) -> Opened:
        """Raises RecordError if there is no record, or if the record does not fit in memory."""
        return cls(name, folder, read_bounded_run(folder), limits or ViewLimits())

    def once(self, what: str, make: Callable[[], T], *, instead: str = "") -> T:
        """The result of `make`, computed once, within the time limit of a page; an error is kept as well. `what` begins
        the error's sentence. Of several results with the same `instead`, only the last one is kept."""
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
            # A copy without the traceback, which would keep in memory what was read so far.
            return type(error)(error.message, advice=error.advice)

    @property
    def read_traces(self) -> list[Trace] | None:
        """The traces, if they were read already."""
        known = self.made.get("Reading the traces", ("", None))[1]
        return known[0] if isinstance(known, tuple) else None

    @property
    def events(self) -> int:
        """Number of trace events in memory."""
        return sum(trace.events.height for trace in self.read_traces or ())

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
        """The verdict of a verb that ran trials, or None."""
        document = self._document("verdict.json")
        return document if isinstance(document, dict) else None

    @cached_property
    def findings(self) -> list[dict[str, Any]] | None:
        """The findings, or None if the rules did not run."""
        document = self._document("findings.json")
        if isinstance(document, dict):
            document = document.get("findings")
        return [each for each in document if isinstance(each, dict)] if isinstance(document, list) else None

    @cached_property
    def trials(self) -> list[str]:
        """Names of the trials' records."""
        return [f"{self.name}/trials/{name}" for name in trials_in(self.folder)]

    @cached_property
    def origin(self) -> Origin | None:
        """What made the record; None for a trial, and for records of an earlier Paceline."""
        return read_origin(self.folder)

    @property
    def labels(self) -> Labels:
        """Name, tags and note, which may change at any time."""
        return read_labels(self.folder)

    @property
    def has_samples(self) -> bool:
        stat = self.folder.file(SAMPLES).stat()
        return stat is not None and stat.st_size <= MOST_SAMPLES

    def prove_samples(self) -> None:
        """Raises NotRegularError if the samples are not a regular file. Only pages report that; rules ignore it."""
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
                f"{file} is damaged: {error or 'the JSON is nested too deeply'}.",
                advice="The record's other files may be intact: open its other pages.",
            ) from error


# -- steps ------------------------------------------------------------------------------------------------------------


MOST = 128 << 20  # bytes of all ranks' step files together: about half a million steps


@dataclass(frozen=True, slots=True)
class Steps:
    """`frame` has the form of `tables.records.steps_frame`. `partly`: the first steps of a long run are left out."""

    frame: pl.DataFrame
    partly: bool = False


def read_steps(folder: Folder, ranks: Sequence[int], *, most: int = MOST) -> Steps:
    """The steps of these ranks. Raises RecordError if a file is damaged anywhere but at its end."""
    each = most // max(len(ranks), 1)
    frames, partly = [], False
    for rank in ranks:
        steps, cut = read_tail(folder.file(f"steps.rank{rank}.jsonl"), each)
        partly = partly or cut
        columns = {"rank": [rank] * len(steps)}
        columns |= {name: [getattr(step, name) for step in steps] for name in Step.__struct_fields__}
        frames.append(pl.DataFrame(columns, schema=STEPS))
    return Steps(pl.concat(frames).sort("rank", "step") if frames else pl.DataFrame(schema=STEPS), partly)


# -- the figures of a run ---------------------------------------------------------------------------------------------


def measure(record: Opened) -> Figures:
    """See `tables.figures`: the only place that computes step time, samples/s and the slowest worker."""
    return kept_figures(record.folder) or figures(columns_in(record.steps.frame))
