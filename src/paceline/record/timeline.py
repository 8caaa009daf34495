"""A run's timeline: what each worker did at which time, for trace viewers (Perfetto, chrome://tracing).

Workers append spans to `timeline.rankR.jsonl` in the record; `write_trace` converts them to one Chrome trace.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import RecordError
from paceline.record.folder import unwritable
from paceline.record.inside import File, Folder
from paceline.record.reader import read_run
from paceline.record.schema import ClockOffset
from paceline.record.writer import StepWriter

BLOCK = 500  # spans per write


class Span(msgspec.Struct, array_like=True):
    """A named interval of time. `track` is the row of the viewer that shows it."""

    track: str
    name: str
    start: float  # unix time
    end: float
    about: dict[str, Any] = {}


class TimelineWriter:
    """Writes the spans of one worker. Callers pass times of `time.perf_counter`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._writer = StepWriter(folder / f"timeline.rank{rank}.jsonl")
        self._zero = time.time() - time.perf_counter()
        self._spans: list[Span] = []

    def add(self, track: str, name: str, start: float, end: float, **about: Any) -> None:
        self._spans.append(Span(track, name, start + self._zero, end + self._zero, about))
        if len(self._spans) >= BLOCK:
            self.flush()

    def flush(self) -> None:
        spans, self._spans = self._spans, []
        self._writer.append(*spans)


def read_spans(path: Path | File, *, most: int | None = None) -> list[Span]:
    """A worker's spans; a torn last line is left out. RecordError if the file has more than `most` bytes."""
    return File.of(path).lines(Span, most)


def on_one_clock(spans: list[Span], clock: ClockOffset | None) -> list[Span]:
    """The spans of a worker on the launcher's clock. `clock`: of the worker's host, if it is another one."""
    if clock is None:
        return spans
    ahead = [clock.ahead(span.start) for span in spans]
    return [
        msgspec.structs.replace(span, start=span.start - each, end=span.end - each)
        for span, each in zip(spans, ahead, strict=True)
    ]


def write_trace(folder: Path, target: Path) -> int:
    """Writes a Chrome trace of a record's timelines; returns the number of spans."""
    here = Folder.of(folder)
    names = {int(name.split("rank")[1].split(".")[0]): name for name in here.names("timeline.rank*.jsonl")}
    clocks: dict[int, ClockOffset | None] = {}
    with contextlib.suppress(RecordError):  # spans without a run.json are of one host
        clocks = {worker.rank: worker.clock for worker in read_run(folder).workers}
    by_rank = {rank: on_one_clock(read_spans(here.file(names[rank])), clocks.get(rank)) for rank in sorted(names)}
    zero = min((span.start for spans in by_rank.values() for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, spans in by_rank.items():
        events.append(_named("process_name", rank, 0, f"worker {rank}"))
        tracks: dict[str, int] = {}
        for span in spans:
            if span.track not in tracks:
                tracks[span.track] = len(tracks)
                events.append(_named("thread_name", rank, tracks[span.track], span.track))
            events.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": tracks[span.track],
                    "name": span.name,
                    "ts": (span.start - zero) * 1e6,
                    "dur": (span.end - span.start) * 1e6,
                    "args": span.about,
                }
            )
    fresh = target.with_name(f".{target.name}.new")
    try:
        fresh.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))
        os.replace(fresh, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise unwritable(target, error) from error
    return sum(map(len, by_rank.values()))


def _named(kind: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": track, "name": kind, "args": {"name": name}}
