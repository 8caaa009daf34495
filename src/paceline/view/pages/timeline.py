"""The page of the time line: one step on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.view.records.record import Opened
from paceline.view.records.spans import MOST, StepSpans, spans_of, steps_of
from paceline.view.ui.blocks import Block, Note, Page, TimeLine
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.links import href

IN_REPORT = 20_000  # spans in a report
LONGEST = 200  # spans in the table


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = steps_of(record)
    if not steps:
        return Page(title="Time line", blocks=[Note(text="No step can be drawn.")])
    wanted = asked.get("step", "")
    step = int(wanted) if wanted.isdecimal() and len(wanted) < 12 and int(wanted) in steps else steps[len(steps) // 2]
    report = "report" in asked
    spans = spans_of(record, step, most=IN_REPORT if report else MOST)
    at = steps.index(step)
    blocks: list[Block] = [
        TimeLine(
            source=f"{href('spans', record.name)}?step={step}",
            data=spans if report else None,
            step=step,
            before=steps[at - 1] if at else None,
            after=steps[at + 1] if at + 1 < len(steps) else None,
            first=steps[0],
            last=steps[-1],
            base=href("timeline", record.name),
        )
    ]
    if spans.note:
        blocks.append(Note(text=spans.note))
    if spans.left_out:
        blocks.append(Note(text=f"The {spans.left_out:,} shortest events are left out.", tone="warn"))
    blocks.append(_longest(spans))
    return Page(title="Time line", blocks=blocks)


def _longest(spans: StepSpans) -> Grid:
    """The longest spans as a table, for screen readers and for sorting."""
    first = sorted(range(len(spans.length)), key=lambda number: -spans.length[number])[:LONGEST]
    rows = [
        {
            "name": spans.names[spans.name[n]],
            "kind": spans.kinds[spans.kind[n]],
            "rank": spans.tracks[spans.track[n]].rank,
            "track": spans.tracks[spans.track[n]].label,
            "start": spans.start[n] / 1e9,
            "length": spans.length[n] / 1e9,
        }
        for n in first
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
                how="Time since the step began on the first rank, by the profiler's clock.",
                kind="seconds",
            ),
            Column(key="length", title="takes", how="Duration of the event, by the profiler's clock.", kind="seconds"),
        ),
        rows=rows,
    )
