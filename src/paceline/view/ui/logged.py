"""Charts of the numbers that the script gave to `paceline.log`."""

from __future__ import annotations

import msgspec

from paceline.charts.chart import Axis, Chart, Line
from paceline.charts.thin import thinned
from paceline.errors import RecordError
from paceline.record.logged import Logged, read_logged
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note
from paceline.view.ui.utilisation import COLOURS

MOST = 12  # names


def logged_charts(record: Opened) -> list[Block]:
    """One chart per name, over the steps."""
    try:
        told = read_logged(record.folder)
    except (RecordError, OSError, msgspec.DecodeError) as error:
        return [Note(text=f"{record.folder.file('logged.jsonl')} cannot be read: {error}.", tone="bad")]
    names = list(dict.fromkeys(name for each in told for name in each.numbers))[:MOST]
    return [_chart(name, told, COLOURS[number % len(COLOURS)]) for number, name in enumerate(names)]


def _chart(name: str, told: list[Logged], colour: str) -> Chart:
    known = [(each.step, each.numbers[name]) for each in told if name in each.numbers]
    return Chart(
        name=f"logged-{name}",
        title=name,
        caption="As the script gave it to paceline.log, on rank 0.",
        x=Axis(title="step"),
        y=Axis(title=name),
        series=[
            thinned(
                Line(
                    name=name,
                    x=[step for step, _ in known],
                    y=[value for _, value in known],
                    colour=colour,
                    markers=len(known) < 60,
                )
            )
        ],
    )
