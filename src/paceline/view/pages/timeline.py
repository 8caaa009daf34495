"""The time line of one step over all ranks."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.view.records.record import Opened
from paceline.view.records.spans import MOST, StepSpans, spans_of, steps_of
from paceline.view.ui.blocks import Block, Note, Page, TimeLine
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.links import href

IN_REPORT = 20_000  # spans
LONGEST = 200  # spans in the table


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = steps_of(record)
    if not steps:
        return Page(title="Time line", blocks=[Note(text="No step can be drawn.")])
    wanted = asked.get("step", "")
    step = int(wanted) if wanted.isdecimal() and len(wanted) < 12 and int(wanted) in steps else steps[len(steps) // 2]
    report = "report" in asked
    told = spans_of(record, step, most=IN_REPORT if report else MOST)
    at = steps.index(step)
    blocks: list[Block] = [
        TimeLine(
            source=f"{href('spans', record.name)}?step={step}",
            data=told if report else None,
            step=step,
            before=steps[at - 1] if at else None,
            after=steps[at + 1] if at + 1 < len(steps) else None,
            first=steps[0],
            last=steps[-1],
            base=href("timeline", record.name),
        )
    ]
    if told.note:
        blocks.append(Note(text=told.note))
    if told.left_out:
        blocks.append(Note(text=f"The {told.left_out:,} shortest events are left out.", tone="warn"))
    blocks.append(_longest(told))
    return Page(title="Time line", blocks=blocks)


def _longest(told: StepSpans) -> Grid:
    """The same as a table: for those who cannot see the picture, and for sorting."""
    first = sorted(range(len(told.length)), key=lambda number: -told.length[number])[:LONGEST]
    rows = [
        {
            "name": told.names[told.name[n]],
            "kind": told.kinds[told.kind[n]],
            "rank": told.tracks[told.track[n]].rank,
            "track": told.tracks[told.track[n]].label,
            "start": told.start[n] / 1e9,
            "length": told.length[n] / 1e9,
        }
        for n in first
    ]
    return Grid(
        name="longest",
        title="The longest events",
        columns=(
            Column(key="name", title="event", how="As the trace names it."),
            Column(key="kind", title="kind", how="Op, mark, driver's call, kernel, copy."),
            Column(key="rank", title="rank", how="The worker.", kind="count"),
            Column(key="track", title="where", how="A thread of the host, or a stream of a device."),
            Column(
                key="start",
                title="begins",
                how="Since the step began on the first rank, by the profiler's clock.",
                kind="seconds",
            ),
            Column(
                key="length", title="takes", how="From its start to its end, by the profiler's clock.", kind="seconds"
            ),
        ),
        rows=rows,
    )
