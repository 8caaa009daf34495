"""The live page of a run in progress, which the browser updates."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.charts.chart import Axis, Chart, Line
from paceline.reports.report import Sentence
from paceline.view.records.contents import shows
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Live, Page
from paceline.view.ui.links import href

CHARTS = [
    Chart(
        name=name,
        title=title,
        caption=caption,
        x=Axis(title="step"),
        y=Axis(title=unit, zero=name != "loss", time=name == "time"),
        series=[Line(name=unit, x=[], y=[], colour="series1")],
        height=240,
    )
    for name, title, unit, caption in (
        ("speed", "Throughput", "samples/s", "Rank 0: samples of the whole batch divided by step time."),
        ("loss", "Loss", "loss", "As the script computed it, for the whole batch."),
        ("time", "Step time", "step time", "Rank 0, wall time."),
    )
]


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    if not shows(record, "live"):
        ended = Sentence(
            f"This run is not in progress: {record.state}.", links=[("Dashboard", href("run", record.name))]
        )
        return Page(title="Live", blocks=[ended])
    blocks: list[Block] = [Live(source=href("follow", record.name), charts=CHARTS)]
    if len(record.ranks) > 64:
        blocks.append(Sentence("Only the first 64 ranks are followed."))
    return Page(title="Live", blocks=blocks)
