"""A chart in words."""

from __future__ import annotations

from paceline.charts.chart import Axis, Band, Bars, Chart, HeatMap, Label, Line
from paceline.charts.words import in_words


def chart(*series, **more):
    return Chart(name="c", title="A title", caption="How.", series=series, **more)


def test_a_line_says_its_ends_and_extremes():
    made = chart(
        Line(name="loss", x=[1, 2, 3], y=[3.0, None, 0.5], colour="data"),
        Band(name="band", x=[1], low=[0], high=[1], colour="data"),
        x=Axis(title="step"),
        y=Axis(title="nats"),
        marks=[Label(x=3, y=0.5, text="the end")],
    )
    assert in_words(made) == (
        "Line chart: nats over step. loss: 2 points, from 3 at 1 to 0.5 at 3, lowest 0.5 at 3, highest 3 at 1. "
        "Marked: the end."
    )


def test_bars_and_shares():
    made = chart(
        Bars(name="busy", x=[0.25, 0.5], y=["rank 0", "rank 1"], colour="data", horizontal=True),
        x=Axis(share=True),
        y=Axis(kind="category"),
    )
    assert "2 bars, lowest 25 % at rank 0, highest 50 % at rank 1" in in_words(made)


def test_a_heat_map_names_its_highest_cell():
    made = chart(HeatMap(name="late", x=[1, 2], y=["a", "b"], cells=[[1, None], [3, 2]], unit="ms", colours="heat"))
    assert "2 × 2 cells, highest 3 ms at b, 1" in in_words(made)


def test_an_empty_chart_and_many_series():
    assert in_words(chart()) == "An empty chart."
    assert "no values" in in_words(chart(Line(name="l", x=[], y=[], colour="data")))
    assert "And 4 more." in in_words(chart(*(Line(name="l", x=[1], y=[1], colour="data") for _ in range(12))))
