"""A chart in words: the text alternative for those who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.charts.chart import Area, Axis, Band, Bars, Chart, HeatMap, Label, Line, Points, Series, Value
from paceline.units import seconds

MOST = 8  # series that are described one by one
KINDS = {
    Line: "Line chart",
    Points: "Points",
    Bars: "Bar chart",
    Band: "Range",
    Area: "Area chart",
    HeatMap: "Heat map",
}


def in_words(chart: Chart) -> str:
    """What is drawn, over which axes, and the first, last, lowest and highest value of each series."""
    shown = [each for each in chart.series if not isinstance(each, Band)]
    if not shown:
        return "An empty chart."
    axes = " over ".join(axis.title for axis in (chart.y, chart.x) if axis.title)
    told = [f"{KINDS[type(shown[0])]}{': ' + axes if axes else ''}."]
    told += [_series(chart, each) for each in shown[:MOST]]
    if len(shown) > MOST:
        told.append(f"And {len(shown) - MOST} more.")
    labels = [mark.text if isinstance(mark, Label) else mark.name for mark in chart.marks]
    if any(labels):
        told.append(f"Marked: {'; '.join(label for label in labels[:MOST] if label)}.")
    return " ".join(told)


def _series(chart: Chart, series: Series) -> str:
    if isinstance(series, HeatMap):
        cells = [(value, y, x) for y, row in zip(series.y, series.cells, strict=False)
                 for x, value in zip(series.x, row, strict=False) if value is not None]  # fmt: skip
        if not cells:
            return f"{series.name}: no values."
        value, y, x = max(cells)
        return (
            f"{series.name}: {len(series.y)} × {len(series.x)} cells, highest {_say(value)} {series.unit} at {y}, {x}."
        )
    across = isinstance(series, Bars) and series.horizontal
    axis = chart.x if across else chart.y
    places: Sequence[Value] = series.y if across else series.x  # type: ignore[union-attr]
    lengths = series.lengths if isinstance(series, Bars) else series.y  # type: ignore[union-attr]
    pairs = [(value, place) for value, place in zip(lengths, places, strict=False) if value is not None]
    if not pairs:
        return f"{series.name}: no values."
    (first, start), (last, end) = pairs[0], pairs[-1]
    low, high = min(pairs, key=lambda pair: pair[0]), max(pairs, key=lambda pair: pair[0])
    if len(pairs) == 1:
        return f"{series.name}: {_say(first, axis)} at {_at(start)}."
    extremes = f"lowest {_say(low[0], axis)} at {_at(low[1])}, highest {_say(high[0], axis)} at {_at(high[1])}"
    if isinstance(series, Bars):
        return f"{series.name}: {len(pairs)} bars, {extremes}."
    ends = f"from {_say(first, axis)} at {_at(start)} to {_say(last, axis)} at {_at(end)}"
    return f"{series.name}: {len(pairs)} points, {ends}, {extremes}."


def _at(place: Value) -> str:
    return _say(place) if isinstance(place, int | float) else str(place)


def _say(value: float, axis: Axis | None = None) -> str:
    if axis is not None and axis.time:
        return seconds(value)
    return f"{100 * value:.3g} %" if axis is not None and axis.share else f"{value:.4g}"
