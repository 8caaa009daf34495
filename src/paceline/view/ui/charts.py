"""Figures, as plotly.js takes them: plain dicts, thinned to what a screen can show.

Colours are names of the page's palette (`data`, `forward` … and `ink`, `accent`, `bad`), which the browser looks up, so
that they suit light and dark. Text from a record is escaped: plotly.js reads tags in labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

POINTS = 1500  # of a line: as many as a wide screen has columns

Figure = dict[str, Any]


def label(text: object, longest: int = 60) -> str:
    """Text from a record, as a label."""
    text = str(text)
    return escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


def line(x: Sequence[Any], y: Sequence[Any], *, name: str, colour: str, **more: Any) -> Figure:
    """A line, thinned where it has more points than can be seen: of each stretch the lowest and the highest stay."""
    x, y = thin(x, y)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 1.5},
        **more,
    }


def points(
    x: Sequence[Any], y: Sequence[Any], *, name: str, colour: str, text: Sequence[str] = (), **more: Any
) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": [label(each) for each in text],
        "marker": {"color": colour, "size": 7},
        **more,
    }


def bars(x: Sequence[Any], y: Sequence[Any], *, name: str, colour: str, **more: Any) -> Figure:
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": {"color": colour}, **more}


def heat(x: Sequence[Any], y: Sequence[Any], z: Sequence[Sequence[Any]], *, unit: str, **more: Any) -> Figure:
    return {"type": "heatmap", "x": list(x), "y": list(y), "z": z, "colorbar": {"title": unit, "thickness": 12}, **more}


def shade(start: float, end: float) -> Figure:
    """A stretch of the x axis in grey."""
    place = {"type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1}
    return {**place, "fillcolor": "shade", "line": {"width": 0}, "layer": "below"}


def axes(x: str, y: str, **more: Any) -> Mapping[str, Any]:
    """A layout with these titles."""
    layout: dict[str, Any] = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, "rangemode": "tozero"}}
    for name, value in more.items():
        layout[name] = {**layout[name], **value} if name in layout else value
    return layout


def thin(x: Sequence[Any], y: Sequence[Any], most: int = POINTS) -> tuple[list[Any], list[Any]]:
    """No more than `most` points, with every peak still there."""
    if len(x) <= most:
        return list(x), list(y)
    values = np.array([np.nan if value is None else value for value in y], dtype=float)
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), most // 2):
        part = values[stretch]
        if np.isnan(part).all():
            kept.append(int(stretch[0]))
            continue
        kept += sorted({int(stretch[np.nanargmin(part)]), int(stretch[np.nanargmax(part)])})
    return [x[i] for i in kept], [y[i] for i in kept]
