"""The page that compares two runs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from paceline.charts.chart import Axis, Bars, Chart, Line
from paceline.charts.thin import thinned
from paceline.record.phases import EVALUATION, PHASES
from paceline.tables.difference import difference, difference_of_ops
from paceline.tables.figures import Figures
from paceline.tables.trace.time_limit import within
from paceline.units import rate
from paceline.view.records.measures import measure
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Page, Tile, Tiles
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.links import href
from paceline.view.ui.what_was_run import command
from paceline.view.ui.wording import say

MOST = 5000  # rows of ops


def build(before: Opened, after: Opened) -> Page:
    measures = [measure(record) for record in (before, after)]
    blocks: list[Block] = [_run_note("A", before), _run_note("B", after), Tiles(_tiles(measures[0], measures[1]))]
    if before.steps.frame.height and after.steps.frame.height:
        blocks += [_split(measures), *_series((before, after)), _parts(before, after)]
    else:
        blocks.append(Note(text="One of the runs has no steps, so step times cannot be compared.", tone="warn"))
    if before.trace_paths and after.trace_paths:
        with within(before.limits.seconds, "Comparing the ops", before.limits.more_time):
            blocks.append(_ops(before, after))
    return Page(title="Two runs", blocks=blocks)


def _run_note(letter: str, record: Opened) -> Note:
    return Note(text=f"{letter}: {command(record)}", links=[(record.name, href("run", record.name))])


def _tiles(a: Figures, b: Figures) -> list[Tile]:
    tiles = []
    if a.samples_per_s and b.samples_per_s:
        times = b.samples_per_s / a.samples_per_s
        tiles.append(
            Tile(
                label="B against A",
                value=say(times, "times"),
                how="samples/s of B divided by samples/s of A, each after its own warm-up.",
                detail="faster" if times > 1 else "slower",
                tone="good" if times > 1.02 else "warn" if times < 0.98 else "",
            )
        )
    for letter, measures in (("A", a), ("B", b)):
        tiles.append(
            Tile(
                label=f"{letter}: samples/s",
                value=rate(measures.samples_per_s) if measures.samples_per_s else "–",
                how=f"Rank 0, after {measures.warm_up} warm-up steps.",
                detail=f"{say(measures.step_time or None, 'seconds')} a step, "
                f"loss {say(measures.last_loss, 'number')} after {measures.steps:,} steps",
            )
        )
    return tiles


def _split(measures: Sequence[Figures]) -> Chart:
    return Chart(
        name="split",
        title="Where the time of a step went",
        caption="Share of each phase over workers, after warm-up, times the step time of the run.",
        x=Axis(title="seconds"),
        y=Axis(kind="category", reverse=True),
        series=[
            Bars(name=part, x=[each.step[part] for each in measures], y=["A", "B"], colour=part, horizontal=True)
            for part in PHASES
            if part != EVALUATION and any(each.step[part] > 0 for each in measures)
        ],
        stacked=True,
        height=210,
        wide=True,
    )


def _series(records: Sequence[Opened]) -> list[Block]:
    made: list[Block] = []
    for key, title, how in (
        ("total", "Step time", "Rank 0, wall time."),
        ("loss", "Loss", "As the script computed it."),
    ):
        lines, usual = [], 0.0
        for letter, colour, record in zip("AB", ("accent", "communication"), records, strict=True):
            steps = record.steps.frame
            first = steps.filter((pl.col("rank") == pl.col("rank").min()) & pl.col(key).is_not_null())
            line = Line(name=letter, x=first["step"].to_list(), y=first[key].to_list(), colour=colour)
            lines.append(thinned(line))
            middle = first[key].median()
            usual = max(usual, middle if isinstance(middle, float) else 0.0)
        limits = (0, 3 * usual) if key == "total" and usual else None
        y = Axis(title="seconds" if key == "total" else "loss", limits=limits)
        made.append(Chart(name=key, title=title, caption=how, x=Axis(title="step"), y=y, series=lines))
    return made


BEFORE = "Run A: seconds per step, over ranks and steps after warm-up; evaluation is beside the total."
AFTER = "Run B: seconds per step, over ranks and steps after warm-up; evaluation is beside the total."
CHANGE = Column(
    key="change", title="B − A", how="Time of B minus time of A; negative means that B is faster.", kind="seconds"
)


def _parts(before: Opened, after: Opened) -> Grid:
    return Grid(
        name="parts",
        title="Parts of a step",
        columns=(
            Column(key="part", title="part", how="Part of a step, as each worker times it."),
            Column(key="before", title="A", how=BEFORE, kind="seconds"),
            Column(key="after", title="B", how=AFTER, kind="seconds"),
            CHANGE,
            Column(
                key="ratio",
                title="B / A",
                how="Time of B divided by time of A; below 1 means that B is faster.",
                kind="times",
            ),
        ),
        rows=difference(before.tables, after.tables).to_dicts(),
    )


def _ops(before: Opened, after: Opened) -> Grid:
    how = "Mean per step and rank, over the traced steps of"
    return Grid(
        name="ops",
        title="Ops that changed",
        columns=(
            Column(key="name", title="op", how="Name of the op in the traces."),
            CHANGE,
            *(
                Column(
                    key=f"{key}_{when}",
                    title=f"{letter}: {key}",
                    how=f"{how} {letter}.",
                    kind="number" if key == "calls" else "seconds",
                )
                for key in ("device", "host", "calls")
                for when, letter in (("before", "A"), ("after", "B"))
            ),
        ),
        rows=difference_of_ops(before.tables, after.tables).head(MOST).to_dicts(),
    )
