"""The page of ranks: which rank is a straggler, since which step, and in which part of the step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from paceline.charts.chart import Axis, Bars, Chart, HeatMap
from paceline.record.phases import PHASES
from paceline.reports.figure_text import SLOWEST
from paceline.reports.report import Column, Sentence
from paceline.tables.iterations import counted, measured
from paceline.tables.stragglers import lags, stragglers
from paceline.units import seconds
from paceline.view.records.record import Opened, measure
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid

COLUMNS = 600  # of the heat map; if there are more steps, several share a column
ROWS = 512  # ranks in the charts


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = record.steps.frame
    late, table = lags(steps), stragglers(steps)
    blocks: list[Block] = []
    named = table.filter("slow")
    for row in named.to_dicts()[:5]:
        delay = f"{seconds(row['behind'])} per step behind the other ranks since step {row['since']:,}"
        blocks.append(
            Sentence(
                f"Rank {row['rank']} is {delay}, mostly in {row['cause']} ({seconds(row['excess'])} more).", "warn"
            )
        )
    if not table.height:
        why = "the parts of a step were not timed" if not steps["split"].any() else "too few steps of all ranks"
        blocks.append(Sentence(f"Whether a rank is slow is not known: {why}."))
    elif not named.height:
        blocks.append(Sentence("No straggler: all ranks take about the same time for their own work.", "good"))
    if late.height:
        blocks.append(heat_map(late, measure(record).step_time))
    blocks += [_parts(steps), _grid(steps, table)]
    return Page(title="Ranks", blocks=blocks)


def heat_map(late: pl.DataFrame, step_time: float) -> Chart:
    """Delays by rank and step. A column that several steps share shows the largest delay. The colours reach from no
    delay to one of a whole step, so that a healthy run looks calm."""
    ranks = late["rank"].unique().sort().to_list()
    numbers = late["step"].unique().sort().to_list()
    grid = late.sort("step", "rank")["behind"].to_numpy().reshape(len(numbers), len(ranks)).T[:ROWS]
    if len(numbers) > COLUMNS:
        parts = np.array_split(np.arange(len(numbers)), COLUMNS)
        grid = np.stack([grid[:, part].max(axis=1) for part in parts], axis=1)
        numbers = [numbers[part[0]] for part in parts]
    grid = np.maximum(grid, 0) * 1e3
    return Chart(
        name="heat",
        title="Delay behind the other ranks",
        caption="A rank's own time in a step (without waiting for other ranks) minus the median of the other ranks' "
        "own times in the same step, in milliseconds. The strongest colour is a delay of a whole step. A dark row is a "
        "straggler. A step that is slow on all ranks does "
        "not show here.",
        x=Axis(title="step"),
        y=Axis(kind="category", reverse=True),
        series=[
            HeatMap(
                name="behind",
                x=numbers,
                y=[f"rank {rank}" for rank in ranks[:ROWS]],
                cells=[[round(float(value), 3) for value in row] for row in grid],
                unit="ms",
                colours="heat",
                high=max(step_time * 1e3, 1e-6),
            )
        ],
        height=min(620, 110 + max(24 * len(ranks), 90)),
        wide=True,
    )


def _settled(steps: pl.DataFrame) -> pl.DataFrame:
    settled = counted(steps)
    return settled.filter("split") if settled["split"].any() else measured(settled)


def _parts(steps: pl.DataFrame) -> Chart:
    table = _settled(steps).group_by("rank", maintain_order=True).agg(pl.col(part).mean() for part in PHASES)
    names = [f"rank {rank}" for rank in table["rank"]][:ROWS]
    return Chart(
        name="by-rank",
        title="Where each rank's time went",
        caption="Mean of each rank's steps after warm-up, as the worker timed them at the seams.",
        x=Axis(kind="category"),
        y=Axis(title="time", time=True, zero=True),
        series=[
            Bars(name=part, x=names, y=table[part].to_list()[:ROWS], colour=part)
            for part in PHASES
            if float(table[part].sum()) > 0
        ],
        stacked=True,
        wide=True,
    )


def _grid(steps: pl.DataFrame, table: pl.DataFrame) -> Grid:
    means = _settled(steps).group_by("rank").agg(pl.col("total").median(), *(pl.col(part).mean() for part in PHASES))
    memory = steps.group_by("rank").agg(pl.col("memory").max())
    shown = means.join(memory, on="rank", how="left").join(table, on="rank", how="left").sort("rank")
    mean = "Mean of the rank's steps after warm-up, as the worker timed them."
    return Grid(
        name="ranks",
        title=f"{shown.height:,} rank{'' if shown.height == 1 else 's'}",
        columns=(
            Column("rank", "rank", "Rank of the worker.", "count"),
            Column("total", "step time", "Median wall time after warm-up.", "seconds"),
            Column("own", "own work", "Median step time without waiting for other ranks.", "seconds"),
            Column("behind", "behind", SLOWEST, "seconds"),
            Column("slow", "slow", SLOWEST, "flag"),
            Column("since", "since step", "From this step on, the rank is behind in most steps.", "count"),
            Column("cause", "mostly in", "The part with the largest delay against the other ranks."),
            *(Column(part, part, mean, "seconds", optional=True) for part in PHASES),
            Column("memory", "memory", "Peak memory, as the worker counted.", "bytes"),
        ),
        rows=shown.to_dicts(),
        mark="slow",
    )
