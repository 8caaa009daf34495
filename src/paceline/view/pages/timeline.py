"""The page of the time line: one or several steps on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from paceline.errors import PacelineError
from paceline.tables.gaps import REASONS, stream_gaps
from paceline.view.records.layout import KINDS, StepSpans
from paceline.view.records.path import path_of
from paceline.view.records.record import Opened
from paceline.view.records.spans import MOST, spans_of, steps_of
from paceline.view.records.traced_spans import parts_of
from paceline.view.ui.blocks import Block, Note, Page, TimeLine
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.links import href

IN_REPORT = 20_000  # spans in a report
LONGEST = 200  # spans in the table


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = steps_of(record)
    if not steps:
        return Page(title="Time line", blocks=[Note(text="No step can be drawn.")])
    first, last = _chosen(steps, asked)
    step, until = steps[first], steps[last]
    report = "report" in asked
    most = IN_REPORT if report else MOST
    spans = spans_of(record, step, until, most=most)
    count, query = last - first + 1, f"?step={step}&until={until}"
    blocks: list[Block] = [
        TimeLine(
            source=href("spans", record.name) + query,
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
        blocks.append(Note(text=spans.note))
    if spans.left_out:
        blocks.append(Note(text=f"The {spans.left_out:,} shortest events are left out.", tone="warn"))
    blocks.append(_longest(spans))
    gaps = _gaps(record, step, until) if record.trace_paths else None
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
    rows = [
        {
            "name": spans.names[spans.name[n]],
            "kind": KINDS[spans.kind[n]],
            "rank": spans.tracks[track[n]].rank,
            "track": spans.tracks[track[n]].label,
            "start": float(spans.start[n]) / 1e9,
            "length": float(spans.length[n]) / 1e9,
        }
        for n in np.argsort(-length, kind="stable")[:LONGEST]
        if length[n] >= 0
    ]
    return Grid(
        name="longest",
        title="The longest events",
        columns=(
            Column(key="name", title="event", how="Name of the event in the trace."),
            Column(key="kind", title="kind", how="Op, mark, driver call, kernel or copy."),
            Column(key="rank", title="rank", how="Rank of the worker.", kind="count"),
            Column(key="track", title="where", how="Thread of the host, or stream of a device."),
            Column(
                key="start",
                title="begins",
                how="Time since the first step began on the first rank, by the profiler's clock.",
                kind="seconds",
            ),
            Column(key="length", title="takes", how="Duration of the event, by the profiler's clock.", kind="seconds"),
        ),
        rows=rows,
    )


def _gaps(record: Opened, step: int, until: int) -> Grid | None:
    """When each stream had no work, by cause. None without a device."""

    def find() -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for part in parts_of(record.tables.traces, step, until)[0]:
            if not part.trace.has_device:
                continue
            inside = pl.min_horizontal("end", pl.lit(part.end)) - pl.max_horizontal("start", pl.lit(part.start))
            rows += (
                stream_gaps(part.trace)
                .with_columns(inside.alias("inside"))
                .filter(pl.col("inside") > 0)
                .group_by("rank", "device", "stream", "cause")
                .agg(gaps=pl.len(), seconds=pl.col("inside").sum() / 1e9)
                .with_columns(
                    pl.format("GPU {}, stream {}", "device", "stream").alias("track"),
                    pl.col("cause").replace_strict(REASONS).alias("reason"),
                    (pl.col("seconds") * 1e9 / max(part.end - part.start, 1)).alias("share"),
                )
                .sort(["device", "stream", "seconds"], descending=[False, False, True])
                .to_dicts()
            )
        return rows

    try:
        rows = record.once(f"Finding the gaps of steps {step} to {until}", find, instead="Gaps")
    except PacelineError as error:
        return Grid(name="gaps", title="Gaps of the streams, by cause", columns=_GAPS, rows=[], empty=error.message)
    if not rows and not any(trace.has_device for trace in record.tables.traces):
        return None
    return Grid(name="gaps", title="Gaps of the streams, by cause", columns=_GAPS, rows=rows)


_GAPS = (
    Column(key="rank", title="rank", how="Rank of the worker.", kind="count"),
    Column(key="track", title="stream", how="Stream of the device."),
    Column(key="cause", title="cause", how="As the time line names it."),
    Column(key="reason", title="in words", how="Why the stream had no work."),
    Column(key="gaps", title="gaps", how="Number of gaps with this cause in the steps shown.", kind="count"),
    Column(key="seconds", title="takes", how="Total time without work, by the profiler's clock.", kind="seconds"),
    Column(key="share", title="share", how="Share of the steps shown.", kind="share", bar=True),
)
