"""Parts that several pages of a run share: the chart of step times, and how figures were measured."""

from __future__ import annotations

import polars as pl

from paceline.charts.chart import Axis, Chart, Line, Points, Shade
from paceline.charts.thin import thinned
from paceline.tables.figures import Figures
from paceline.tables.iterations import iterations
from paceline.view.records.record import Opened

STEP_TIME = (
    "Wall time between the ends of two consecutive optimizer steps, rank 0, after warm-up, without steps under the "
    "profiler or with evaluation: the median of blocks of steps."
)


def step_times(record: Opened, measures: Figures) -> Chart:
    """Step times of the first worker, with the outliers."""
    steps = record.steps.frame
    first = steps.filter(pl.col("rank") == pl.col("rank").min())
    table = iterations(steps).filter(pl.col("rank") == first["rank"][0])
    odd = table.filter("outlier").sort("excess", descending=True).head(200)
    number, total = first["step"].to_list(), first["total"].to_list()
    usual = measures.step_time
    ceiling = max([usual * 3, *(odd["total"].head(20).to_list()), 1e-9])
    warm_up = Shade(start=number[0] - 0.5, end=number[0] + measures.warm_up - 0.5)
    outliers = Points(
        name="outlier",
        x=odd["step"].to_list(),
        y=odd["total"].to_list(),
        colour="bad",
        text=[
            f"step {n}, mostly {why}" if why else f"step {n}" for n, why in zip(odd["step"], odd["why"], strict=True)
        ],
    )
    return Chart(
        name="step-times",
        title="Step time",
        caption="Rank 0, wall time. Shaded: warm-up steps. Marked: outliers, which are more than five times the "
        "usual scatter and more than 20 % above the median; the label names the part that grew most.",
        x=Axis(title="step"),
        y=Axis(title="step time", time=True, limits=(0, ceiling * 1.1)),
        series=[
            thinned(Line(name="step", x=number, y=total, colour="series1")),
            *([outliers] if odd.height else []),
        ],
        marks=[warm_up] if measures.warm_up else [],
    )
