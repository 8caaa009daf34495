"""Draws charts side by side into one SVG file.

matplotlib is imported only to draw, because its import takes longer than the rest of a verb.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.charts.chart import (
    Area,
    Axis,
    Band,
    Bars,
    Chart,
    HeatMap,
    Label,
    Line,
    Rule,
    Series,
    Shade,
    Value,
)
from paceline.record.private import make_folder, opened

# The light palette of the pages.
COLOURS = {
    "card": "#ffffff", "ink": "#1c2330", "accent": "#2463c9", "good": "#1a7f4b", "bad": "#c2362b", "warn": "#9a6700",
    "data": "#e69f00", "forward": "#56b4e9", "backward": "#0072b2", "communication": "#d55e00", "optimizer": "#009e73",
    "evaluation": "#cc79a7", "other": "#9aa0aa", "idle": "#e3e6ec",
}  # fmt: skip
SCALES = {"rates": ("card", "backward"), "heat": ("card", "data", "bad")}
DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}
SIDES = {
    "right": ((6, 0), "left", "center"),
    "below right": ((8, -5), "left", "top"),
    "above left": ((-8, 5), "right", "bottom"),
}
COLUMNS = 3
INCH = 62  # page pixels per inch of the SVG, which is taller, because it also holds the chart's title
MOST_TICKS = 10


def write_svg(charts: Sequence[Chart], path: Path, *, title: str) -> None:
    """Writes the SVG into a record. Raises ModuleNotFoundError if matplotlib is missing."""
    from matplotlib.figure import Figure

    columns = min(len(charts), COLUMNS)
    rows = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(chart.height for chart in row) / INCH for row in rows]
    width = 6.4 if columns == 1 else 5.2 * columns
    captions = dict.fromkeys(chart.caption for chart in charts)
    caption = "\n".join(textwrap.fill(each, int(width * 20)) for each in captions)
    figure = Figure(figsize=(width, sum(heights) + 0.5 + 0.15 * len(caption.splitlines())), layout="constrained")
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(caption, fontsize=7, color="0.4")
    panels = figure.subfigures(len(rows), columns, squeeze=False, height_ratios=heights)
    for panel, chart in zip(panels.flat, charts, strict=False):
        _draw(panel, chart)
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")


def _draw(panel: Any, chart: Chart) -> None:
    axes = panel.subplots()
    _Drawing(axes, chart).draw()
    axes.set_title(chart.title, fontsize=10)
    handles, names = axes.get_legend_handles_labels()
    if len(handles) > 1:
        columns = max(1, min(len(names), int(70 / (max(map(len, names)) + 8))))
        panel.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


class _Drawing:
    """One chart on matplotlib's axes. Artists of the n-th series have the id NAME-n in the SVG."""

    def __init__(self, axes: Any, chart: Chart) -> None:
        self.axes, self.chart = axes, chart
        self.bars = [each for each in chart.series if isinstance(each, Bars)]
        self.groups = list(dict.fromkeys(each.group or each.name for each in self.bars))
        self.stack_heights: dict[tuple[float, bool], float] = defaultdict(
            float
        )  # (position, is positive) → height so far
        self.area: Any = 0.0

    def draw(self) -> None:
        self.scale("x")
        self.scale("y")
        for number, series in enumerate(self.chart.series):
            self.add(series, f"{self.chart.name}-{number}")
        for mark in self.chart.marks:
            if isinstance(mark, Rule):
                across = self.axes.axvline if mark.axis == "x" else self.axes.axhline
                across(mark.at, color=COLOURS[mark.colour], ls=DASHES[mark.dash], lw=1.2, label=mark.name or None)
            elif isinstance(mark, Shade):
                colour = COLOURS[mark.colour]
                self.axes.axvspan(mark.start, mark.end, color=colour, alpha=0.15, lw=0, label=mark.name or None)
            else:
                self.label(mark)
        if not any(isinstance(series, HeatMap) for series in self.chart.series):
            self.axes.grid(alpha=0.25)
            self.axes.set_axisbelow(True)
        self.limit("x")
        self.limit("y")

    def add(self, series: Series, gid: str) -> None:
        colour = "" if isinstance(series, HeatMap) else COLOURS[series.colour]
        if isinstance(series, HeatMap):
            self.heat_map(series, gid)
        elif isinstance(series, Bars):
            self.add_bars(series, colour, gid)
        elif isinstance(series, Band):
            self.axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, lw=0, gid=gid)
        elif isinstance(series, Area):
            top = self.area + _numbers(series.y)
            self.axes.fill_between(
                series.x, self.area, top, step="post", color=colour, lw=0, label=series.name, gid=gid
            )
            self.area = top
        else:
            x, y = self.places("x", series.x), _numbers(series.y)
            style: dict[str, Any] = {"ls": "none", "marker": "o"}
            if isinstance(series, Line):
                style = {"ls": DASHES[series.dash], "lw": series.width, "marker": "o" if series.markers else None}
            self.axes.plot(x, y, color=colour, ms=4, label=series.name, gid=gid, **style)
            if isinstance(series, Line) and series.low:
                # Rounding can put the end of an error bar on the wrong side of its point; matplotlib rejects a
                # negative length.
                spread = np.maximum([y - _numbers(series.low), _numbers(series.high) - y], 0)
                self.axes.errorbar(x, y, yerr=spread, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)

    def add_bars(self, series: Bars, colour: str, gid: str) -> None:
        which: Literal["x", "y"] = "y" if series.horizontal else "x"
        places, lengths = self.places(which, series.places), np.nan_to_num(_numbers(series.lengths))
        width, bottoms = 0.7, np.zeros(len(lengths))
        if self.chart.stacked:
            for number, (place, length) in enumerate(zip(places, lengths, strict=True)):
                bottoms[number] = self.stack_heights[place, length > 0]
                self.stack_heights[place, length > 0] += length
        else:
            width /= len(self.groups)
            places = places + (self.groups.index(series.group or series.name) - (len(self.groups) - 1) / 2) * width
        draw, base = (self.axes.barh, "left") if series.horizontal else (self.axes.bar, "bottom")
        drawn = draw(places, lengths, width, color=colour, label=series.name, **{base: bottoms})
        for number, bar in enumerate(drawn):
            bar.set_gid(f"{gid}-{number}")

    def heat_map(self, series: HeatMap, gid: str) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        cells = np.array([_numbers(row) for row in series.cells])
        scale = LinearSegmentedColormap.from_list("", [COLOURS[name] for name in SCALES[series.colours]])
        image = self.axes.imshow(cells, cmap=scale, vmin=0, vmax=series.top, aspect="auto", gid=gid)
        if series.written:
            for (row, column), value in np.ndenumerate(cells):
                if not np.isnan(value):
                    colour = "black" if sum(scale(image.norm(value))[:3]) > 1.5 else "white"
                    self.axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=8, color=colour)
        for axis, values in ((self.axes.xaxis, series.x), (self.axes.yaxis, series.y)):
            every = max(1, len(values) // MOST_TICKS)
            axis.set_ticks(range(0, len(values), every), [str(value) for value in values[::every]])
        self.axes.figure.colorbar(image, ax=self.axes, shrink=0.8, label=series.unit)

    def label(self, label: Label) -> None:
        shift, left, top = SIDES[label.side]
        [x], [y] = self.places("x", [label.x]), self.places("y", [label.y])
        self.axes.annotate(label.text, (x, y), shift, textcoords="offset points", ha=left, va=top, fontsize=8)

    def places(self, which: Literal["x", "y"], values: Sequence[Value]) -> Any:
        if self.axis(which).kind != "category":
            return _numbers(values)
        names = self.chart.categories(which)
        return np.array([names.index(str(value)) for value in values], dtype=float)

    def axis(self, which: Literal["x", "y"]) -> Axis:
        return self.chart.x if which == "x" else self.chart.y

    def scale(self, which: Literal["x", "y"]) -> None:
        """Sets labels, scale and ticks, which matplotlib needs before it draws."""
        from matplotlib.ticker import NullFormatter, NullLocator, PercentFormatter

        axis, drawn = self.axis(which), getattr(self.axes, f"{which}axis")
        drawn.set_label_text(axis.title)
        drawn.set_tick_params(labelsize=8)
        if axis.kind == "log":
            getattr(self.axes, f"set_{which}scale")("log")
            drawn.set_major_formatter(lambda value, _: f"{value:g}")
            drawn.set_minor_formatter(NullFormatter())
        if axis.kind == "category":
            names = self.chart.categories(which)
            every = 1 if which == "y" else max(1, len(names) // MOST_TICKS)
            shown = [textwrap.shorten(name, 44, placeholder="…") for name in names[::every]]
            drawn.set_ticks(range(0, len(names), every), shown)
        if axis.share:
            drawn.set_major_formatter(PercentFormatter(1))
        if axis.ticks:
            rotation = 45 if which == "x" and len(axis.ticks) > MOST_TICKS else 0
            drawn.set_ticks([at for at, _ in axis.ticks], [text for _, text in axis.ticks], rotation=rotation)
            drawn.set_minor_locator(NullLocator())

    def limit(self, which: Literal["x", "y"]) -> None:
        """Sets the limits, which depend on what is drawn."""
        axis = self.axis(which)
        if any(isinstance(mark, Label) for mark in self.chart.marks) and which == "x":
            self.axes.margins(x=0.12)  # room for the text
        low, high = sorted(getattr(self.axes, f"get_{which}lim")())
        if axis.kind == "log" and not axis.ticks and high < 30 * low:  # too few powers of ten for tick labels
            getattr(self.axes, f"{which}axis").set_minor_formatter(lambda value, _: f"{value:g}")
        if axis.limits:
            getattr(self.axes, f"set_{which}lim")(*axis.limits)
        elif axis.zero:
            getattr(self.axes, f"set_{which}lim")(min(low, 0) if self.negative(which) else 0, high)
        if axis.reverse and not any(isinstance(series, HeatMap) for series in self.chart.series):
            getattr(self.axes, f"{which}axis").set_inverted(True)

    def negative(self, which: str) -> bool:
        values = [value for series in self.chart.series for value in getattr(series, which, ())]
        return any(isinstance(value, int | float) and value < 0 for value in values)


def _numbers(values: Sequence[Any]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=float)
