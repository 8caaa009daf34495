"""The page of the time line: one or several steps on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from paceline.reports.report import Column, Sentence
from paceline.tables.timeline import REASONS
from paceline.view.records.layout import KINDS, StepSpans
from paceline.view.records.path import path_of
from paceline.view.records.record import Opened
from paceline.view.records.spans import MOST, spans_of, steps_of
from paceline.view.ui.blocks import Block, Page, TimeLine
from paceline.view.ui.grid import Grid
from paceline.view.ui.links import href

IN_REPORT = 20_000  # spans in a report
LONGEST = 200  # spans in the table
MANY = 100_000  # spans that a browser loads and draws at once; of more, it first draws an overview


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = steps_of(record)
    if not steps:
        return Page(title="Time line", blocks=[Sentence("No step can be drawn.")])
    first, last = _chosen(steps, asked)
    step, until = steps[first], steps[last]
    report = "report" in asked
    most = IN_REPORT if report else MOST
    spans = spans_of(record, step, until, most=most)
    count, query = last - first + 1, f"?step={step}&until={until}"
    blocks: list[Block] = [
        TimeLine(
            source=href("spans", record.name) + query,
            overview=href("overview", record.name) + query if len(spans.start) > MANY and not report else "",
            path_source=href("path", record.name) + query if record.trace_paths else "",
            data=spans if report else None,
            path=path_of(record, step, until, most=most) if report and record.trace_paths else None,
            step=step,
            until=until,
            before=(steps[max(first - count, 0)], steps[first - 1]) if first else None,
            after=(steps[last + 1], steps[min(last + count, len(steps) - 1)]) if last + 1 < len(steps) else None,
            first=steps[0],
            last=steps[-1],
            count=len(steps),
            base=href("timeline", record.name),
        )
    ]
    if spans.note:
        blocks.append(Sentence(spans.note))
    if spans.left_out:
        blocks.append(Sentence(f"The {spans.left_out:,} shortest events are left out.", "warn"))
    longest, gaps = record.once(
        f"Listing the longest of {len(spans.start):,} spans of steps {step} to {until}",
        lambda: (_longest(spans), _gaps(spans)),
        instead="Tables",
    )
    blocks.append(longest)
    if gaps is not None:
        blocks.append(gaps)
    return Page(title="Time line", blocks=blocks)


def _chosen(steps: list[int], asked: Mapping[str, str]) -> tuple[int, int]:
    """The places of the first and the last step to draw; without a choice, a step in the middle."""
    places = {str(step): at for at, step in enumerate(steps)}
    first = places.get(asked.get("step", ""), len(steps) // 2)
    return first, max(first, places.get(asked.get("until", ""), first))


def _longest(spans: StepSpans) -> Grid:
    """The longest spans as a table, for screen readers and for sorting."""
    length, track = np.where(spans.kind == KINDS.index("gap"), -1, spans.length), spans.track
    marks = spans.kind == KINDS.index("mark")
    events, marked = (_largest(np.where(kept, length, -1)) for kept in (~marks, marks))
    rows = [
        {
            "name": spans.names[spans.name[n]],
            "kind": KINDS[spans.kind[n]],
            "rank": spans.tracks[track[n]].rank,
            "track": spans.tracks[track[n]].label,
            "start": float(spans.start[n]) / 1e9,
            "length": float(spans.length[n]) / 1e9,
        }
        for places, kept in ((events, ~marks), (marked, marks))  # a mark only encloses events
        for n in places
        if kept[n] and length[n] >= 0
    ]
    return Grid(
        name="longest",
        title="The longest events",
        columns=(
            Column("name", "event", "Name of the event in the trace."),
            Column("kind", "kind", "Op, mark, driver call, kernel or copy."),
            Column("rank", "rank", "Rank of the worker.", "count"),
            Column("track", "where", "Thread of the host, or stream of a device."),
            Column("start", "begins", "Since the first rank's first step began, by the profiler's clock.", "seconds"),
            Column("length", "takes", "Duration of the event, by the profiler's clock.", "seconds"),
        ),
        rows=rows,
    )


def _largest(length: NDArray[Any]) -> NDArray[Any]:
    """The places of the largest values, largest first, without sorting all."""
    some = np.argpartition(-length, LONGEST)[:LONGEST] if len(length) > LONGEST else np.arange(len(length))
    return some[np.lexsort((some, -length[some]))]


def _gaps(spans: StepSpans) -> Grid | None:
    """When each stream had no work, by cause. None without a device."""
    if spans.gaps is None or not spans.gaps.height:
        return None
    length = max(sum(step.end - step.start for step in spans.steps), 1)
    rows = (
        spans.gaps.group_by("rank", "device", "stream", maintain_order=True)
        .agg(
            *(pl.col(cause).sum() for cause in REASONS),
            *((pl.col(cause) > 0).sum().alias(f"{cause} gaps") for cause in REASONS),
        )
        .to_dicts()
    )
    told = [
        {
            "rank": row["rank"],
            "track": f"GPU {row['device']}, stream {row['stream']}",
            "cause": cause,
            "reason": REASONS[cause],
            "gaps": row[f"{cause} gaps"],
            "seconds": row[cause] / 1e9,
            "share": row[cause] / length,
        }
        for row in rows
        for cause in sorted(REASONS, key=lambda cause: -row[cause])
        if row[cause]
    ]
    return Grid(name="gaps", title="Gaps of the streams, by cause", columns=_GAPS, rows=told)


_GAPS = (
    Column("rank", "rank", "Rank of the worker.", "count"),
    Column("track", "stream", "Stream of the device."),
    Column("cause", "cause", "As the time line names it."),
    Column("reason", "in words", "Why the stream had no work."),
    Column("gaps", "gaps", "Number of gaps in which this cause has a part.", "count"),
    Column("seconds", "takes", "Total time without work, by the profiler's clock.", "seconds"),
    Column("share", "share", "Share of the steps shown.", "share", bar=True),
)
