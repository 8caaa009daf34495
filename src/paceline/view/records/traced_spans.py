"""The spans of some steps from traces: threads, streams with their gaps, and arrows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

import numpy as np
import polars as pl

from paceline.tables.critical_path import Part, collectives, launch_pairs
from paceline.tables.timeline import REASONS, stream_gaps
from paceline.tables.trace.columns import KIND, ON_DEVICE, Trace
from paceline.tables.trace.kinds import STEP, of_communication, says
from paceline.tables.trace.steps import windows
from paceline.tables.waits import LINE
from paceline.view.records.layout import COLLECTIVE, KINDS, LAUNCH, Column, Drawing, StepMark, StepSpans

TOGETHER = 4  # ranks that are looked at at the same time
MOST_TRACKS = 200  # threads of a rank, and streams of a rank; the others are left out
APART = 10  # step times: if the ranks' steps begin further apart, every rank's steps are drawn from zero
NAME = 300  # characters of a span's name
STICKS_OUT = 20  # a call that reaches into the next step by less than this part of a step ends where that begins
LEAST_GAP = 1000  # nanoseconds: shorter gaps of a stream are not drawn


def parts_of(traces: Sequence[Trace], step: int, until: int) -> tuple[list[Part], bool]:
    """The part of each trace to draw, and whether their clocks can be compared."""
    found: list[tuple[Trace, int, int]] = []
    for trace in traces:
        window = windows(trace).filter(pl.col("step").is_between(step, until))
        if window.height:
            found.append((trace, int(window["start"].min()), int(window["end"].max())))  # type: ignore[arg-type]
    length = max(end - start for _, start, end in found)
    begins = [trace.base + start for trace, start, _ in found]
    together, zero = max(begins) - min(begins) <= APART * max(length, 1), min(begins)
    shifts = [trace.base - zero if together else -start for trace, start, _ in found]
    return [
        Part(trace=trace, start=start, end=end, shift=shift)
        for (trace, start, end), shift in zip(found, shifts, strict=True)
    ], together


def from_traces(traces: Sequence[Trace], step: int, until: int, most: int) -> StepSpans:
    parts, together = parts_of(traces, step, until)
    drawing, left_out, gaps, pairs = Drawing(), 0, [], []
    # One thread per rank: numpy and polars compute without the GIL. Each has the page's time limit.
    with ThreadPoolExecutor(min(len(parts), TOGETHER)) as pool:
        found = [pool.submit(copy_context().run, _draw_rank, part, most // len(parts)) for part in parts]
        for each in found:
            rank, left, its_gaps, its_pairs = each.result()
            drawing.take(rank)
            left_out += left
            gaps.append(its_gaps)
            pairs.append(its_pairs)
    note = "" if together else "The ranks' clocks differ: the steps of every rank begin at zero."
    first = parts[0]
    marks = windows(first.trace).filter(pl.col("step").is_between(step, until))
    steps = [
        StepMark(step=number, start=start + first.shift, end=end + first.shift) for number, start, end in marks.rows()
    ]
    latest = max(part.end + part.shift for part in parts)
    drawn = drawing.as_spans(step, until, latest, steps=steps, left_out=left_out, note=note)
    return replace(_with_links(drawn, parts, pairs), gaps=pl.concat(gaps))


def _draw_rank(part: Part, most: int) -> tuple[Drawing, int, pl.DataFrame, pl.DataFrame]:
    """The tracks of one rank, the number of its events that are left out, its gaps and its launches."""
    gaps, drawing = stream_gaps(part.trace, part.start, part.end), Drawing()
    left_out = _add_trace(drawing, part, most, gaps)
    return drawing, left_out, gaps, launch_pairs(part.trace)


def _with_links(drawn: StepSpans, parts: Sequence[Part], launches: Sequence[pl.DataFrame]) -> StepSpans:
    """Adds the arrows: from launches to their work, and from the rank that came last to a collective to the others."""
    places = {part.trace.rank: drawn.places(part.trace.rank, part.trace.events.height) for part in parts}
    sources, targets, kinds = [], [], []

    def add(source: Column, target: Column, kind: int) -> None:
        known = (source >= 0) & (target >= 0)
        sources.append(source[known])
        targets.append(target[known])
        kinds.append(np.full(int(known.sum()), kind))

    for part, pairs in zip(parts, launches, strict=True):
        place = places[part.trace.rank]
        add(place[pairs["launch"].to_numpy()], place[pairs["work"].to_numpy()], LAUNCH)
    meets = collectives([part.trace for part in parts])
    if meets.height:
        drawn_at = np.full(meets.height, -1)
        for part in parts:
            mine = (meets["rank"] == part.trace.rank).to_numpy()
            drawn_at[mine] = places[part.trace.rank][meets["event"].to_numpy()[mine]]
        last = meets.with_columns(pl.Series("at", drawn_at)).with_columns(
            pl.col("at").sort_by("start").last().over("collective").alias("last")
        )
        last = last.filter(pl.col("at") != pl.col("last"))
        add(last["last"].to_numpy(), last["at"].to_numpy(), COLLECTIVE)
    return replace(
        drawn,
        link_from=np.concatenate(sources),
        link_to=np.concatenate(targets),
        link_kind=np.concatenate(kinds),
    )


def _add_trace(drawing: Drawing, part: Part, most: int, all_gaps: pl.DataFrame) -> int:
    """Adds the events of one trace. Returns the number of events that are left out."""
    start, end = part.start, part.end
    needed = ("kind", "name", "start", "end", "process", "thread", "device", "stream")
    rows = (
        part.trace.events.select(needed)
        .with_row_index("event")
        .filter((pl.col("start") < end) & (pl.col("end") > start) & (pl.col("kind") != "python"))
    )
    # The marks of neighbouring steps overlap these steps slightly.
    rows = rows.filter(~says(rows["name"], STEP) | rows["start"].is_between(start, end - 1))
    # So do the calls that end the step before: they are not this step's.
    windowed = windows(part.trace).filter(pl.col("start").is_between(start, end - 1))
    slack = int((windowed["end"] - windowed["start"]).min() or 0) // STICKS_OUT  # type: ignore[arg-type]
    rows = rows.filter(pl.col("kind").is_in(ON_DEVICE) | (pl.col("start") >= start) | (pl.col("end") > start + slack))
    rows, left_out = _longest(rows, most)
    communicates = of_communication(rows["name"]) & (rows["kind"] == "kernel")
    codes = np.array([KINDS.index(kind) for kind in KIND.categories], dtype=np.int64)
    kind = np.where(communicates.to_numpy(), KINDS.index("communication"), codes[rows["kind"].to_physical().to_numpy()])
    rows = rows.with_columns(
        pl.Series("code", kind),
        pl.Series("named", _numbered(drawing, rows["name"])),
        (pl.col("start", "end") + part.shift),
        pl.col("kind").is_in(ON_DEVICE).alias("on_device"),
    )
    host = rows.filter(~pl.col("on_device"))
    host = host.with_columns(_until(host))
    threads = host.partition_by("process", "thread", maintain_order=True)
    threads.sort(key=lambda mine: (-mine.height, mine["thread"][0]))
    streams = rows.filter("on_device").partition_by("device", "stream", maintain_order=True)
    gaps = _drawn_gaps(drawing, part, all_gaps) if streams else {}
    for number, mine in enumerate(threads[:MOST_TRACKS]):
        label = part.trace.threads.get((mine["process"][0], mine["thread"][0]))
        label = label or ("host" if number == 0 else f"thread {mine['thread'][0]}")
        _add_track(drawing, part.trace.rank, label[:NAME], mine)
    for mine in streams[:MOST_TRACKS]:
        device, stream = mine["device"][0], mine["stream"][0]
        columns = mine.select("start", "end", "named", "code", "event")
        found = gaps.get((device, stream))
        _add_track(
            drawing,
            part.trace.rank,
            f"GPU {device}, stream {stream}",
            columns if found is None else pl.concat([columns, found], how="vertical_relaxed"),
        )
    return left_out + sum(mine.height for mine in (*threads[MOST_TRACKS:], *streams[MOST_TRACKS:]))


def _until(rows: pl.DataFrame) -> pl.Series:
    """Where the host's events end for the layout. A step is marked in the midst of the calls that end the step before,
    which therefore reach a little into the next step. Both are drawn side by side, not one below the other."""
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    borders = np.sort(start[says(rows["name"], STEP).to_numpy()])
    if len(borders) < 2:
        return rows["end"].alias("until")
    over = np.diff(borders).min() // STICKS_OUT
    border = np.append(borders, np.iinfo(np.int64).max)[np.searchsorted(borders, start, side="right")]
    return pl.Series("until", np.where((end > border) & (end - border <= over), border, end))


def _add_track(drawing: Drawing, rank: int, label: str, rows: pl.DataFrame) -> None:
    names = ("start", "end", "named", "code", "event", *(("until",) if "until" in rows.columns else ()))
    drawing.add(rank, label, *(rows[name].cast(pl.Int64).to_numpy() for name in names))


def _drawn_gaps(drawing: Drawing, part: Part, gaps: pl.DataFrame) -> dict[tuple[int, int], pl.DataFrame]:
    """The gaps of each stream, as spans that say their main cause."""
    names = drawing.names_of([f"gap: {cause}" for cause in REASONS])
    found = gaps.filter(pl.col("end") - pl.col("start") >= LEAST_GAP)
    rows = found.select(
        "device",
        "stream",
        pl.col("start", "end") + part.shift,
        pl.Series("named", names[found["cause"].to_physical().to_numpy()]),
        pl.lit(KINDS.index("gap"), dtype=pl.Int64).alias("code"),
        pl.lit(-1, dtype=pl.Int64).alias("event"),
    )
    return {
        (mine["device"][0], mine["stream"][0]): mine.drop("device", "stream")
        for mine in rows.partition_by("device", "stream")
    }


def _numbered(drawing: Drawing, names: pl.Series) -> Column:
    """The number of each name in the drawing. Every distinct name is looked at once."""
    codes = names.to_physical().to_numpy()
    used = np.unique(codes)
    assert isinstance(names.dtype, pl.Enum)
    known = names.dtype.categories
    numbers = np.full(len(known), -1)
    numbers[used] = drawing.names_of([readable(known[int(code)]) for code in used])
    return numbers[codes]


def readable(name: str) -> str:
    """A span's name; the capture's mark of a script line becomes FILE:LINE function()."""
    line = re.match(LINE, name)
    return (f"{line[1]}:{line[2]} {line[3]}()" if line else name)[:NAME]


def _longest(rows: pl.DataFrame, most: int) -> tuple[pl.DataFrame, int]:
    if rows.height <= most:
        return rows, 0
    length = (rows["end"] - rows["start"]).to_numpy()
    kept = np.sort(np.argpartition(-length, most)[:most])
    return rows[kept], rows.height - most
