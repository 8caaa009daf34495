"""The critical batch size of a run with `--noise-scale`: a tile, and the gradient noise scale over the steps."""

from __future__ import annotations

import math
import re

import polars as pl

from paceline.charts.chart import Axis, Chart, Line, Rule
from paceline.charts.thin import thinned
from paceline.errors import RecordError
from paceline.record import read_run
from paceline.reports.noise import figure, find_noise
from paceline.reports.report import Figure, Sentence
from paceline.view.records.reading import LARGEST
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block

_AUTO = re.compile(r"^large_batch=auto: the noise scale is ")


def critical_tiles(record: Opened) -> list[Figure]:
    """The critical batch size, if the run measured gradient noise."""
    found = find_noise(record.folder)
    return [figure(found, _batch(record))] if found is not None else []


def noise_chart(record: Opened) -> list[Block]:
    """The estimate so far, over the steps."""
    steps = record.steps.frame
    first = steps.filter((pl.col("rank") == pl.col("rank").min()) & pl.col("noise").is_not_null())
    if not first.height:
        return []
    batch = _batch(record)
    line = Line(name="noise scale", x=first["step"].to_list(), y=first["noise"].to_list(), colour="series1")
    return [
        Chart(
            name="noise-scale",
            title="Gradient noise scale",
            caption="The estimate so far, in samples. Far above the batch size, a larger batch saves steps; far below, "
            "it does not." + (" Dotted: the batch of this run." if batch else ""),
            x=Axis(title="step"),
            y=Axis(title="samples", zero=True),
            series=[thinned(line)],
            marks=[Rule(axis="y", at=batch, name=f"batch {batch:,}")] if batch else [],
        )
    ]


def critical_notes(record: Opened) -> list[Sentence]:
    """What the trials of `converge` found out about the critical batch size, one note for each different finding."""
    found: dict[str, str] = {}
    for name in record.trials:
        folder = record.folder.folder("trials", name.rpartition("/")[2])
        measured = find_noise(folder)
        if measured is not None and math.isfinite(measured.batch):
            text = f"Critical batch size: {measured.batch:,.0f} samples"
            found.setdefault("measured", f"{text} (95 %: {measured.low:,.0f} to {measured.high:,.0f}).")
        try:
            outcome = read_run(folder, most=LARGEST).outcome
        except RecordError:
            continue
        for notice in outcome.notices if outcome else []:
            if _AUTO.search(notice):
                found.setdefault("auto", _AUTO.sub("Critical batch size, by large_batch=auto: ", notice) + ".")
    return [Sentence(text) for text in found.values()]


def _batch(record: Opened) -> int:
    steps = record.steps.frame
    most = steps["samples"].mode().max() if steps.height else None
    return most if isinstance(most, int) else 0
