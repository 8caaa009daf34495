"""The page of iterations: every step of every rank, and the outliers with their cause."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.charts.chart import Axis, Bars, Chart
from paceline.record.phases import PHASES
from paceline.reports.report import Column, Figure, Sentence
from paceline.reports.wording import say
from paceline.tables.iterations import iterations
from paceline.units import count, percent
from paceline.view.records.contents import has_traces
from paceline.view.records.record import Opened, measure
from paceline.view.ui.blocks import Block, Page, Tiles
from paceline.view.ui.grid import Grid
from paceline.view.ui.run_parts import STEP_TIME, step_times
from paceline.view.ui.traced import profile_of

OUTLIER = "More than five times the usual scatter above the median, and more than 20 % above it; never in warm-up."

MOST = 50_000  # rows of the table: the last steps
BARS = 400  # steps in the chart of parts

COLUMNS = (
    Column("rank", "rank", "Rank of the worker.", "count"),
    Column("step", "step", "Number of the optimizer step, from 1.", "count"),
    Column("total", "took", "Wall time from the end of the previous step to the end of this step.", "seconds"),
    Column("usual", "usual", "The median of this rank's steps after warm-up.", "seconds"),
    Column("excess", "more than usual", "took − usual.", "seconds"),
    Column("outlier", "outlier", OUTLIER, "flag"),
    Column("why", "mostly", "The part that grew most, compared with its own median."),
    *(
        Column(part, part, "Timed by the worker; empty if this step was not split.", "seconds", optional=True)
        for part in PHASES
    ),
    Column("samples", "samples", "Samples of the whole batch.", "count", optional=True),
    Column("loss", "loss", "As the script computed it.", "number"),
    Column("warm_up", "warm-up", "Warm-up steps are left out of all measurements.", "flag"),
)


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = record.steps.frame
    measures = measure(record)
    table = iterations(steps)
    odd = table.filter("outlier")
    lost = float(odd["excess"].sum())
    whole = float(table.filter(~pl.col("warm_up"))["total"].sum())
    settled = table.filter(~pl.col("warm_up"))["total"]
    spread = [settled.quantile(q) for q in (0.05, 0.95)]
    blocks: list[Block] = [
        Tiles(
            [
                Figure("step time", say(measures.step_time or None, "seconds"), STEP_TIME),
                Figure(
                    "5 % to 95 %",
                    " – ".join(say(each, "seconds") for each in spread),
                    "The range of 90 % of all ranks' steps after warm-up.",
                ),
                Figure("warm-up", count(measures.warm_up, "step"), "The first steps, until step times are stable."),
                Figure(
                    "outliers",
                    f"{odd.height:,}",
                    "Steps that take far longer than the median step of the same rank.",
                    f"{percent(lost / whole if whole else 0.0)} of total time",
                    tone="warn" if whole and lost / whole > 0.02 else "",
                ),
            ]
        ),
        step_times(record, measures),
        *([_parts(steps)] if steps["split"].any() else []),
    ]
    shown = steps.join(
        table.select("rank", "step", "warm_up", "usual", "excess", "outlier", "why"), on=["rank", "step"], how="left"
    )
    blank = [pl.when("split").then(part).alias(part) for part in PHASES]
    blank.append(pl.when(pl.col("samples") > 0).then("samples").alias("samples"))
    shown = shown.with_columns(blank).sort("step", "rank")
    if shown.height > MOST:
        blocks.append(Sentence(f"The table shows the last {MOST:,} of {shown.height:,} rows.", "warn"))
        shown = shown.tail(MOST)
    shown = pl.concat([shown.filter("outlier").sort("excess", descending=True), shown.filter(~pl.col("outlier"))])
    blocks.append(
        Grid(
            name="iterations",
            title="Steps, outliers first" if odd.height else "Steps",
            columns=COLUMNS,
            rows=shown.select(column.key for column in COLUMNS).to_dicts(),
            mark="outlier",
        )
    )
    if has_traces(record):
        blocks.append(_traced(record))
    return Page(title="Iterations", blocks=blocks)


def _parts(steps: pl.DataFrame) -> Chart:
    first = steps.filter((pl.col("rank") == pl.col("rank").min()) & pl.col("split")).tail(BARS)
    number = first["step"].to_list()
    usual = first["total"].median()
    limits = (0, 3 * usual) if isinstance(usual, float) and usual > 0 else None
    return Chart(
        name="parts",
        title="Parts of a step",
        caption=f"Rank 0, the last {BARS} steps that were split, as the worker timed them at the seams.",
        x=Axis(title="step"),
        y=Axis(title="time", time=True, zero=True, limits=limits),
        series=[
            Bars(name=part, x=number, y=first[part].to_list(), colour=part)
            for part in PHASES
            if float(first[part].sum()) > 0
        ],
        stacked=True,
    )


def _traced(record: Opened) -> Grid:
    how = "Host time in this phase, from the marks that the capture puts into the trace."
    return Grid(
        name="traced",
        title="Traced steps",
        columns=(
            *COLUMNS[:2],
            Column("wall", "took", "Length of the profiler's mark of the step.", "seconds"),
            *(Column(phase, phase, how, "seconds", optional=True) for phase in PHASES),
        ),
        rows=profile_of(record).iterations,
    )
