"""Reads the spans of every rank in one step, as columns of numbers for the time line.

Sources are the traces of a profile, or `timeline.rankR.jsonl`, which `run --timeline` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import polars as pl

from paceline.errors import RecordError
from paceline.record.inside import File
from paceline.record.timeline import read_spans
from paceline.tables.trace.columns import Trace, rank_in
from paceline.tables.trace.kinds import STEP, of_communication, says
from paceline.tables.trace.steps import windows
from paceline.tables.trace.time_limit import go_on
from paceline.tables.waits import LINE
from paceline.view.records.record import Opened

MOST = 100_000  # spans of a step; if there are more, the shortest are left out
MOST_STEPS = 2000  # steps that a user can choose from
MOST_TRACKS = 200  # threads of a rank, and streams of a rank; the others are left out
DEEPEST = 24  # rows of a track
LARGEST = 64 << 20  # bytes of a rank's timeline.jsonl
APART = 10  # step times: if the ranks' steps begin further apart, every rank's step is drawn from zero
NAME = 300  # characters of a span's name
COLUMNS = ("track", "depth", "start", "length", "name", "kind")
KINDS = ("op", "mark", "runtime", "kernel", "copy", "set", "sync", "python", "communication")


class Track(msgspec.Struct, kw_only=True):
    rank: int
    label: str
    rows: int


class StepSpans(msgspec.Struct, kw_only=True):
    """The spans of one step, as columns. `start` and `length` are in nanoseconds, `start` since the step began. `depth`
    is the row within the track; `name` and `kind` are indices into `names` and `kinds`."""

    step: int
    end: int
    kinds: tuple[str, ...]
    names: list[str]
    tracks: list[Track]
    track: list[int]
    depth: list[int]
    start: list[int]
    length: list[int]
    name: list[int]
    kind: list[int]
    left_out: int = 0
    note: str = ""


@dataclass
class _Drawing:
    """Collects spans. Times are nanoseconds since the step began."""

    names: dict[str, int] = field(default_factory=dict)
    tracks: list[Track] = field(default_factory=list)
    columns: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    def add(self, rank: int, label: str, spans: Sequence[tuple[int, int, str, str]]) -> None:
        """Adds the spans of one track, (start, end, name, kind). An enclosing span precedes the spans inside it."""
        go_on()
        depths = _depths(spans)
        track = len(self.tracks)
        self.tracks.append(Track(rank=rank, label=label, rows=min(max(depths, default=0) + 1, DEEPEST)))
        columns = self.columns
        for (start, end, name, kind), depth in zip(spans, depths, strict=True):
            if depth >= DEEPEST:
                continue
            columns["track"].append(track)
            columns["depth"].append(depth)
            columns["start"].append(start)
            columns["length"].append(end - start)
            columns["name"].append(self.names.setdefault(_readable(name), len(self.names)))
            columns["kind"].append(KINDS.index(kind))

    def as_step_spans(self, step: int, end: int, left_out: int, note: str = "") -> StepSpans:
        names = list(self.names)
        return StepSpans(
            step=step,
            end=end,
            kinds=KINDS,
            names=names,
            tracks=self.tracks,
            left_out=left_out,
            note=note,
            **self.columns,
        )


def _readable(name: str) -> str:
    """A span's name; the capture's mark of a script line becomes FILE:LINE function()."""
    line = re.match(LINE, name)
    return (f"{line[1]}:{line[2]} {line[3]}()" if line else name)[:NAME]


def steps_of(record: Opened) -> list[int]:
    """Numbers of the steps that can be drawn."""
    if record.trace_paths:
        return record.once("Finding the steps", lambda: _traced(record.tables.traces))
    steps = record.steps.frame
    if not steps.height:
        return []
    return steps.filter(pl.col("rank") == pl.col("rank").min())["step"].to_list()[-MOST_STEPS:]


def _traced(traces: Sequence[Trace]) -> list[int]:
    return sorted({int(step) for trace in traces for step in windows(trace)["step"]})[:MOST_STEPS]


def spans_of(record: Opened, step: int, *, most: int = MOST) -> StepSpans:
    """The spans of one step. Raises RecordError if this step cannot be drawn."""
    if step not in steps_of(record):
        raise RecordError(f"{record.name} has no step {step} that can be drawn.")

    def draw() -> StepSpans:
        if record.trace_paths:
            return _from_traces(record.tables.traces, step, most)
        return _from_timeline(record, step, most)

    return record.once(f"Drawing step {step} with at most {most:,} spans", draw, instead="Drawing")


# -- from traces -------------------------------------------------------------------------------------------------------


def _from_traces(traces: Sequence[Trace], step: int, most: int) -> StepSpans:
    found: list[tuple[Trace, int, int]] = []
    for trace in traces:
        window = windows(trace).filter(pl.col("step") == step)
        if window.height:
            found.append((trace, int(window["start"][0]), int(window["end"][0])))
    length = max(end - start for _, start, end in found)
    begins = [trace.base + start for trace, start, _ in found]
    together = max(begins) - min(begins) <= APART * max(length, 1)
    zero = min(begins)
    drawing, left_out = _Drawing(), 0
    latest = 0
    for trace, start, end in found:
        shift = trace.base - zero if together else -start
        rows = trace.events.filter((pl.col("start") < end) & (pl.col("end") > start) & (pl.col("kind") != "python"))
        # The marks of neighbouring steps overlap this step slightly.
        rows = rows.filter(~says(rows["name"], STEP) | (rows["start"] == start))
        rows, dropped = _longest(rows, most // len(found))
        left_out += dropped
        latest = max(latest, end + shift)
        left_out += _add_trace(drawing, trace.rank, rows, shift)
    note = "" if together else "The ranks' clocks differ: every rank's step begins at zero."
    return drawing.as_step_spans(step, latest, left_out, note)


def _longest(rows: pl.DataFrame, most: int) -> tuple[pl.DataFrame, int]:
    if rows.height <= most:
        return rows, 0
    length = (rows["end"] - rows["start"]).to_numpy()
    kept = np.sort(np.argpartition(-length, most)[:most])
    return rows[kept], rows.height - most


def _add_trace(drawing: _Drawing, rank: int, rows: pl.DataFrame, shift: int) -> int:
    """Adds the events of one trace. Returns the number of events on tracks that are left out."""
    communicates = of_communication(rows["name"]) & (rows["kind"] == "kernel")
    rows = rows.select(
        pl.col("kind").is_in(("kernel", "copy", "set")).alias("on_device"),
        *("device", "stream", "process", "thread"),
        (pl.col("start") + shift).alias("start"),
        (pl.col("end") + shift).alias("end"),
        pl.col("name").cast(pl.String),
        pl.when(communicates).then(pl.lit("communication")).otherwise(pl.col("kind").cast(pl.String)).alias("kind"),
    )
    host = rows.filter(~pl.col("on_device"))
    threads = host.partition_by("process", "thread", maintain_order=True)
    threads.sort(key=lambda mine: (-mine.height, mine["thread"][0]))
    streams = rows.filter("on_device").partition_by("device", "stream", maintain_order=True)
    for number, mine in enumerate(threads[:MOST_TRACKS]):
        drawing.add(rank, "host" if number == 0 else f"thread {mine['thread'][0]}", _in_order(mine))
    for mine in streams[:MOST_TRACKS]:
        drawing.add(rank, f"GPU {mine['device'][0]}, stream {mine['stream'][0]}", _in_order(mine))
    return sum(mine.height for mine in (*threads[MOST_TRACKS:], *streams[MOST_TRACKS:]))


def _in_order(rows: pl.DataFrame) -> list[tuple[int, int, str, str]]:
    return rows.sort(["start", "end"], descending=[False, True]).select("start", "end", "name", "kind").rows()


def _depths(spans: Iterable[tuple[int, int, str, str]]) -> list[int]:
    """The row of each span: the number of earlier spans that are still open when the span starts."""
    open_until: list[int] = []
    depths = []
    for start, end, _, _ in spans:
        while open_until and open_until[-1] <= start:
            open_until.pop()
        depths.append(len(open_until))
        open_until.append(max(end, open_until[-1]) if open_until and end > open_until[-1] else end)
    return depths


# -- from a run with --timeline ----------------------------------------------------------------------------------------


def _from_timeline(record: Opened, step: int, most: int) -> StepSpans:
    row = record.steps.frame.filter(pl.col("step") == step).row(0, named=True)
    start, end = row["at"] - row["total"], row["at"]
    drawing, left_out = _Drawing(), 0
    for path in record.spans_paths:
        found = [span for span in _read(path) if span.start < end and span.end > start]
        found.sort(key=lambda span: span.start - span.end)
        each = max(most // len(record.spans_paths), 1)
        left_out += max(0, len(found) - each)
        tracks: dict[str, list[tuple[int, int, str, str]]] = {}
        for span in found[:each]:
            kind = "communication" if "comm" in span.track or "bucket" in span.name else "mark"
            begin, until = round((span.start - start) * 1e9), round((span.end - start) * 1e9)
            tracks.setdefault(span.track, []).append((begin, until, span.name, kind))
        for track, spans in list(tracks.items())[:MOST_TRACKS]:
            spans.sort(key=lambda span: (span[0], -span[1]))
            drawing.add(rank_in(path.name) or 0, track[:NAME], spans)
    return drawing.as_step_spans(step, round((end - start) * 1e9), left_out)


def _read(path: File) -> list[Any]:
    try:
        return read_spans(path, most=LARGEST)
    except (OSError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error
