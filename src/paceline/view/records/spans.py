"""Reads the spans of every rank in some steps, for the time line.

Sources are the traces of a profile, or `timeline.rankR.jsonl`, which `run --timeline` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from paceline.errors import PacelineError, RecordError
from paceline.record.inside import File, Folder
from paceline.record.phases import PHASES
from paceline.record.timeline import on_one_clock, read_spans
from paceline.tables.timeline import CAUSE, GAPS
from paceline.tables.trace import kept
from paceline.tables.trace.columns import LATEST, Trace, rank_in
from paceline.tables.trace.kept import DAMAGED, ColumnFile
from paceline.tables.trace.steps import windows
from paceline.view.records.layout import KINDS, Drawing, StepMark, StepSpans, Track
from paceline.view.records.reading import FROM_ELSEWHERE
from paceline.view.records.record import Opened
from paceline.view.records.traced_spans import MOST_TRACKS, NAME, from_traces, readable

MOST = 1_500_000  # spans on a page; if there are more, the shortest are left out
MOST_STEPS = 2000  # steps that a user can choose from
LARGEST = 64 << 20  # bytes of a rank's timeline.jsonl
TRACK = "phases"  # the track on which a worker writes the phases of its steps


def steps_of(record: Opened) -> list[int]:
    """Numbers of the steps that can be drawn."""
    if record.trace_paths:
        return kept_steps(record) or record.once("Finding the steps", lambda: _traced(record.tables.traces))
    steps = record.steps.frame
    if not steps.height:
        return []
    return steps.filter(pl.col("rank") == pl.col("rank").min())["step"].to_list()[-MOST_STEPS:]


def _traced(traces: Sequence[Trace]) -> list[int]:
    return sorted({int(step) for trace in traces for step in windows(trace)["step"]})[:MOST_STEPS]


def spans_of(record: Opened, step: int, until: int | None = None, *, most: int = MOST) -> StepSpans:
    """The spans of the steps `step` to `until`. Raises RecordError if one of these two steps cannot be drawn."""
    until = step if until is None else until
    prove_steps(record, step, until)

    def draw() -> StepSpans:
        if record.trace_paths:
            kept = kept_drawing(record, step, until, most)
            if kept is not None:
                return kept
            drawn = from_traces(record.tables.traces, step, until, most)
            keep_drawing(record, drawn, steps_of(record), most)
            return drawn
        return _from_timeline(record, step, until, most)

    return record.once(f"Drawing steps {step} to {until} with at most {most:,} spans", draw, instead="Drawing")


def keep_time_line(folder: Path) -> None:
    """Lays out all steps of a record with large traces, and keeps that beside them for `view`."""
    with suppress(PacelineError):
        record = Opened.of(folder.name, Folder(folder))
        steps = steps_of(record)
        if steps:
            spans_of(record, steps[0], steps[-1])


def prove_steps(record: Opened, step: int, until: int) -> None:
    known = steps_of(record)
    for each in (step, until):
        if each not in known:
            raise RecordError(f"{record.name} has no step {each} that can be drawn.")
    if until < step:
        raise RecordError(f"Steps {step} to {until} cannot be drawn: the last step is before the first one.")


# -- from a run with --timeline ----------------------------------------------------------------------------------------


def _from_timeline(record: Opened, step: int, until: int, most: int) -> StepSpans:
    steps = record.steps.frame.filter(pl.col("step").is_between(step, until) & (pl.col("rank") == pl.col("rank").min()))
    clocks = {worker.rank: worker.clock for worker in record.run.workers}
    marks = []
    for row in steps.iter_rows(named=True):
        clock = clocks.get(row["rank"])
        at = row["at"] - (clock.ahead(row["at"]) if clock is not None else 0.0)
        marks.append((row["step"], at - row["total"] - row["check"], at))
    start, end = min(mark[1] for mark in marks), max(mark[2] for mark in marks)
    drawing, left_out = Drawing(), 0
    for path in record.spans_paths:
        read = on_one_clock(_read(path), clocks.get(rank_in(path.name) or 0))
        found = [span for span in read if span.start < end and span.end > start]
        found.sort(key=lambda span: span.start - span.end)
        each = max(most // len(record.spans_paths), 1)
        left_out += max(0, len(found) - each)
        tracks: dict[str, list[tuple[int, int, str, str]]] = {}
        for span in found[:each]:
            kind = "communication" if "comm" in span.track or "bucket" in span.name else "mark"
            # A phase has the name that it has in a trace, and so its colour.
            name = f"paceline.{span.name}" if span.track == TRACK and span.name in PHASES else span.name
            tracks.setdefault(span.track, []).append((_since(start, span.start), _since(start, span.end), name, kind))
        for track, spans in sorted(tracks.items(), key=lambda each: each[0] != TRACK)[:MOST_TRACKS]:
            starts, ends, names, kinds = zip(*spans, strict=True)
            drawing.add(
                rank_in(path.name) or 0,
                track[:NAME],
                np.array(starts, dtype=np.int64),
                np.array(ends, dtype=np.int64),
                drawing.names_of([readable(name) for name in names]),
                np.array([KINDS.index(kind) for kind in kinds], dtype=np.int64),
            )
    steps_drawn = [StepMark(step=number, start=_since(start, a), end=_since(start, b)) for number, a, b in marks]
    return drawing.as_spans(step, until, _since(start, end), steps=steps_drawn, left_out=left_out)


def _since(start: float, moment: float) -> int:
    return round((moment - start) * 1e9)


def _read(path: File) -> list[Any]:
    try:
        return read_spans(path, most=LARGEST)
    except (OSError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error


# -- drawings that are kept -------------------------------------------------------------------------------------------


WORTH_IT = 100_000  # spans; fewer are laid out in a moment
_LAST = 1000 * LATEST  # nanoseconds
_SPANS = ("start", "length", "name", "kind", "event")
_LINKS = ("link_from", "link_to", "link_kind")


class _Drawn(msgspec.Struct, kw_only=True):
    known: list[int]  # all steps that can be drawn
    step: int
    until: int
    most: int  # spans that were allowed
    end: int
    names: list[str]
    tracks: list[Track]
    steps: list[StepMark]
    left_out: int
    note: str


def keep_drawing(record: Opened, spans: StepSpans, known: Sequence[int], most: int) -> bool:
    """Keeps the drawing of these steps, if it is long, in the place of the one that was kept before."""
    if len(spans.start) < WORTH_IT or record.run.verb == FROM_ELSEWHERE or not record.trace_paths:
        return False
    assert spans.gaps is not None
    head = _Drawn(
        known=list(known),
        most=most,
        **{name: getattr(spans, name) for name in ("step", "until", "end", "names", "tracks", "steps")},
        left_out=spans.left_out,
        note=spans.note,
    )
    columns = {name: getattr(spans, name) for name in (*_SPANS, *_LINKS)}
    columns |= {f"gap.{name}": spans.gaps[name].to_physical().to_numpy() for name in GAPS}
    return kept.write(record.folder, _NAME, head, columns, of=record.trace_paths)


_NAME = "timeline" + kept.ENDING


def kept_steps(record: Opened) -> list[int] | None:
    """All steps of a record that can be drawn, if a drawing was kept."""
    found = _read_kept(record)
    return found.head.known if found is not None else None


def kept_drawing(record: Opened, step: int, until: int, most: int) -> StepSpans | None:
    """The drawing of these steps, if it was kept."""
    found = _read_kept(record)
    if found is None or (found.head.step, found.head.until, found.head.most) != (step, until, most):
        return None
    try:
        return _decoded(found)
    except (*DAMAGED, pl.exceptions.PolarsError):
        return None


def _read_kept(record: Opened) -> ColumnFile[_Drawn] | None:
    """Read once; a record that changes is opened anew."""
    if not record.trace_paths:
        return None
    file = record.folder.file(_NAME)
    return record.once("Reading the kept time line", lambda: kept.read(file, _Drawn, of=record.trace_paths))


def _decoded(found: ColumnFile[_Drawn]) -> StepSpans:
    head = found.head
    rows = [count for track in head.tracks for count in track.rows]
    spans = {
        "start": found.numbers("start", least=-_LAST, most=_LAST),
        "length": found.numbers("length", least=0, most=_LAST),
        "name": found.numbers("name", least=0, most=len(head.names) - 1),
        "kind": found.numbers("kind", least=0, most=len(KINDS) - 1),
        "event": found.numbers("event", least=-1),
    }
    count = len(spans["start"])
    links = {
        "link_from": found.numbers("link_from", least=0, most=count - 1),
        "link_to": found.numbers("link_to", least=0, most=count - 1),
        "link_kind": found.numbers("link_kind", least=0, most=1),
    }
    if min(rows, default=0) < 0 or {sum(rows)} != {len(values) for values in spans.values()}:
        raise ValueError("rows")
    if len({len(values) for values in links.values()}) > 1 or not 0 <= head.end <= _LAST:
        raise ValueError("links")
    gaps = {name: found.numbers(f"gap.{name}", least=None if name in ("start", "end") else -1) for name in GAPS}
    causes = pl.Series("cause", list(CAUSE.categories), dtype=CAUSE)
    if len(gaps["cause"]) and not 0 <= int(gaps["cause"].min()) <= int(gaps["cause"].max()) < len(causes):
        raise ValueError("cause")
    frame = {name: causes.gather(values) if name == "cause" else values for name, values in gaps.items()}
    return StepSpans(
        step=head.step,
        until=head.until,
        end=head.end,
        names=head.names,
        tracks=head.tracks,
        steps=head.steps,
        start=spans["start"],
        length=spans["length"],
        name=spans["name"],
        kind=spans["kind"],
        event=spans["event"],
        link_from=links["link_from"],
        link_to=links["link_to"],
        link_kind=links["link_kind"],
        gaps=pl.DataFrame(frame, schema=GAPS),
        left_out=head.left_out,
        note=head.note,
    )
