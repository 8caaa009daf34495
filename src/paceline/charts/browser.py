"""Converts a chart into traces and a layout for a page's script (view/static/charts.js), as plain dicts.

The names are those that plotly.js uses for the same things. Colours stay palette names, which are CSS variables of the
page. Text is plain: the script inserts it as text, never as HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from paceline.charts.chart import (
    Area,
    Axis,
    Band,
    Bars,
    Chart,
    HeatMap,
    Label,
    Line,
    Points,
    Rule,
    Series,
    Shade,
    Value,
)

DASHES = {
    "solid": "solid",
    "dashed": "dash",
    "dotted": "dot",
    "dash-dot": "dashdot",
    "long": "longdash",
    "long-dot": "longdashdot",
}
SIDES = {
    "right": ("left", "middle", 6, 0),
    "below right": ("left", "top", 6, -4),
    "above right": ("left", "bottom", 6, 4),
    "above left": ("right", "bottom", -6, 4),
    "below left": ("right", "top", -6, -4),
}
LONGEST = 44  # characters of a name in the legend or on an axis
MANY_BARS = 60  # bars; with more, there are no gaps between them

Figure = dict[str, Any]


def figure(chart: Chart) -> Figure:
    layout: Figure = {
        "xaxis": _axis(chart, "x"),
        "yaxis": _axis(chart, "y"),
        "shapes": [_shape(mark) for mark in chart.marks if not isinstance(mark, Label)],
        "annotations": [_annotation(chart, mark) for mark in chart.marks if isinstance(mark, Label)],
        "showlegend": len(chart.series) > 1 or any(not isinstance(mark, Label) and mark.name for mark in chart.marks),
    }
    bars = [each for each in chart.series if isinstance(each, Bars)]
    if bars:
        layout["barmode"] = "relative" if chart.stacked else "group"
        if max(len(each.places) for each in bars) > MANY_BARS:
            layout["bargap"] = 0
    return {"data": [_trace(chart, each) for each in chart.series], "layout": layout, "height": chart.height}


def _short(text: object) -> str:
    text = str(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _values(axis: Axis, values: Sequence[Value]) -> list[Value]:
    return [str(value) for value in values] if axis.kind == "category" else list(values)


def _axis(chart: Chart, which: Literal["x", "y"]) -> Figure:
    axis = chart.x if which == "x" else chart.y
    made: Figure = {"title": {"text": axis.title}}
    if axis.kind == "log":
        made["type"] = "log"
    if axis.kind == "category":
        names = chart.categories(which)
        made |= {"type": "category", "categoryorder": "array", "categoryarray": [str(name) for name in names]}
        made["showgrid"] = False
        if any(len(name) > LONGEST for name in names):
            made |= {"tickvals": made["categoryarray"], "ticktext": [_short(name) for name in names]}
    if axis.limits:
        made["range"] = [math.log10(limit) for limit in axis.limits] if axis.kind == "log" else list(axis.limits)
    elif axis.zero:
        made["rangemode"] = "tozero"
    if axis.share:
        made["tickformat"] = ".0%"
    if axis.time:
        made["tickformat"] = "time"
    if axis.ticks:
        made |= {"tickvals": [at for at, _ in axis.ticks], "ticktext": [text for _, text in axis.ticks]}
    if axis.reverse:
        made["autorange"] = "reversed"
    return made


def _trace(chart: Chart, series: Series) -> Figure:
    trace: Figure = {"name": _short(series.name), "x": _values(chart.x, series.x)}
    if not isinstance(series, Band):
        trace["y"] = _values(chart.y, series.y)
    if isinstance(series, Line | Points):
        trace |= {"type": "scatter", "mode": "markers" if isinstance(series, Points) else "lines"}
        if isinstance(series, Points) or series.markers:
            trace["marker"] = {"color": series.colour, "size": 7}
        if series.text:
            trace["text"] = list(series.text)
    if isinstance(series, Line):
        trace["line"] = {"color": series.colour, "width": series.width, "dash": DASHES[series.dash]}
        if series.markers:
            trace["mode"] = "lines+markers"
        if series.low:
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [high - y for high, y in zip(series.high, series.y, strict=True) if y is not None],
                "arrayminus": [y - low for low, y in zip(series.low, series.y, strict=True) if y is not None],
                "color": series.colour,
                "thickness": 1.2,
            }
    elif isinstance(series, Bars):
        trace |= {"type": "bar", "marker": {"color": series.colour}}
        if series.horizontal:
            trace["orientation"] = "h"
        if series.group:
            trace["offsetgroup"] = series.group
    elif isinstance(series, Band):
        # One closed outline: the upper edge forwards, then the lower edge backwards.
        trace |= {"x": [*series.x, *reversed(series.x)], "y": [*series.high, *reversed(series.low)]}
        trace |= {"type": "scatter", "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        trace |= {"fill": "toself", "fillcolor": series.colour, "opacity": 0.15}
    elif isinstance(series, Area):
        trace |= {"type": "scatter", "mode": "lines", "stackgroup": "one", "fillcolor": series.colour}
        trace["line"] = {"width": 0, "shape": "hv"}
    elif isinstance(series, HeatMap):
        trace |= {"type": "heatmap", "z": series.cells, "zmin": 0, "zmax": series.top, "colorscale": series.colours}
        trace["colorbar"] = {"title": {"text": series.unit}}
        if series.written:
            trace["texttemplate"] = "z"
    return trace


def _shape(mark: Rule | Shade) -> Figure:
    shape: Figure = {"layer": "below", "name": _short(mark.name), "showlegend": bool(mark.name)}
    if isinstance(mark, Rule):
        across = "y" if mark.axis == "x" else "x"
        shape |= {"type": "line", "xref": "x", "yref": "y", f"{across}ref": "paper", f"{across}0": 0, f"{across}1": 1}
        shape |= {f"{mark.axis}0": mark.at, f"{mark.axis}1": mark.at}
        shape["line"] = {"color": mark.colour, "width": 1.5, "dash": DASHES[mark.dash]}
    else:
        shape |= {"type": "rect", "xref": "x", "yref": "paper", "x0": mark.start, "x1": mark.end, "y0": 0, "y1": 1}
        shape |= {"fillcolor": mark.colour, "opacity": 0.15, "line": {"width": 0}}
    return shape


def _annotation(chart: Chart, label: Label) -> Figure:
    left, top, right, up = SIDES[label.side]
    return {
        "x": _place(chart.x, label.x),
        "y": _place(chart.y, label.y),
        "text": label.text,
        "showarrow": False,
        "xanchor": left,
        "yanchor": top,
        "xshift": right,
        "yshift": up,
        "font": {"size": 11},
    }


def _place(axis: Axis, value: Value) -> Value:
    """An annotation's position. On a logarithmic axis the script expects the logarithm, for annotations only."""
    if axis.kind == "category":
        return str(value)
    return math.log10(value) if axis.kind == "log" and isinstance(value, int | float) else value
