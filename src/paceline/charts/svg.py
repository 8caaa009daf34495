"""Draws charts side by side into one SVG file, with the standard library alone.

Widths of text are estimates, because there are no font metrics here: places that depend on them have room to spare.
"""

from __future__ import annotations

import math
import re
import textwrap
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from paceline.charts.chart import (
    Area,
    Axis,
    Band,
    Bars,
    Chart,
    Dash,
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
DASHES = {
    "solid": "none", "dashed": "7 4", "dotted": "2 4", "dash-dot": "11 4 2 4", "long": "14 4", "long-dot": "14 3 4 3"
}  # fmt: skip
SIDES = {
    "right": (7, 4, "start"),
    "below right": (8, 14, "start"),
    "above right": (8, -5, "start"),
    "above left": (-8, -5, "end"),
    "below left": (-8, 14, "end"),
}
COLUMNS = 3
ALONE, BESIDE = 640, 480  # pixels: the width of a single chart, and of one beside others
TITLE, CAPTION, LEGEND = 24, 13, 16  # pixels: the height of a title, and of a line of the caption and of the legend
TEXT = 11  # pixels: the size of letters
LETTER = 0.56  # of that size: about the mean width of a letter
LONGEST = 44  # characters of a name on an axis
BAR_WIDTH, MANY_BARS = 0.76, 60  # of the place of a bar; with more bars than this there are no gaps
UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML

Which = Literal["x", "y"]


def write_svg(charts: Sequence[Chart], path: Path, *, title: str) -> None:
    """Writes the SVG into a record."""
    columns = min(len(charts), COLUMNS)
    wide = ALONE if columns == 1 else BESIDE
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif", "fill": "none"})
    background = _add(svg, "rect", fill=COLOURS["card"])
    _text(svg, columns * wide / 2, 20, title, "middle", size=15)
    top = 30.0
    for start in range(0, len(charts), columns):
        row = charts[start : start + columns]
        drawn = [_Panel(svg, chart, left=wide * n, top=top, width=wide) for n, chart in enumerate(row)]
        top += max(panel.height for panel in drawn) + 8
    letters = int(columns * wide / (10 * LETTER)) - 8
    captions = dict.fromkeys(chart.caption for chart in charts)
    for line in (line for each in captions for line in textwrap.wrap(each, letters)):
        top += CAPTION
        _text(svg, columns * wide / 2, top, line, "middle", size=10, fill="#5b6472")
    top += 8
    size = {"width": str(columns * wide), "height": f"{top:.0f}"}
    svg.attrib |= size | {"viewBox": f"0 0 {size['width']} {size['height']}"}
    background.attrib |= size
    make_folder(path.parent)
    with opened(path) as file:
        file.write(ET.tostring(svg, encoding="utf-8", xml_declaration=True))


class _Scale:
    """From the numbers and names of one axis to pixels. `given`: all values that must be in sight."""

    def __init__(self, axis: Axis, names: list[str], given: Iterable[float], *, padding: float, zero: bool) -> None:
        self.axis, self.names = axis, {name: at for at, name in enumerate(names)}
        self.start, self.end = 0.0, 1.0
        found = [at for at in map(self._on_axis, given) if math.isfinite(at)]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        if axis.kind == "category":
            low, high = -0.5, max(len(names), 1) - 0.5
        elif axis.limits:
            low, high = map(self._on_axis, axis.limits)
        else:
            from_zero = zero and axis.kind == "linear"
            if from_zero:
                low, high = min(low, 0.0), max(high, 0.0)
            if low == high:
                half = 0.3 if axis.kind == "log" else abs(low) * 0.1 or 0.5
                low, high = (low, high + half) if from_zero else (low - half, high + half)
            room = (high - low) * padding
            low, high = (low if from_zero and low == 0 else low - room), high + room
        self.low, self.high = (high, low) if axis.reverse else (low, high)

    def _on_axis(self, value: Value) -> float:
        if self.axis.kind == "category":
            return self.names.get(str(value), math.nan)
        if not isinstance(value, int | float):
            return math.nan
        if self.axis.kind == "log":
            return math.log10(value) if value > 0 else math.nan
        return float(value)

    def _pixel(self, at: float) -> float:
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)

    def place(self, value: Value) -> float:
        """The pixel of a value; not a number where it has none."""
        return self._pixel(self._on_axis(value))

    def base(self, value: float) -> float:
        """Where a bar begins: a logarithmic axis has no zero."""
        at = self._on_axis(value)
        return self._pixel(at) if math.isfinite(at) else self.start

    @property
    def unit(self) -> float:
        """Pixels of one unit, or of one name."""
        return abs(self.end - self.start) / abs(self.high - self.low)

    def ticks(self, room: float) -> list[tuple[float, str]]:
        """Pixel and text of each tick, at least `room` pixels apart."""
        low, high = sorted((self.low, self.high))
        most = max(2, int(abs(self.end - self.start) / room))
        if self.axis.kind == "category":
            every = -(-len(self.names) // most)
            return [(self._pixel(at), _short(name)) for name, at in self.names.items() if at % every == 0]
        if self.axis.ticks:
            given = [(self.place(at), text) for at, text in self.axis.ticks if low <= self._on_axis(at) <= high]
            kept: list[tuple[float, str]] = []
            for at, text in given:
                if not kept or abs(at - kept[-1][0]) >= room:
                    kept.append((at, text))
            return kept
        values = _even(low, high, most)
        if self.axis.kind == "log":
            factors = (1, 2, 3, 5, 7) if high - low < 1.2 else (1, 2, 5) if high - low < 2.5 else (1,)
            powers = range(math.floor(low), math.ceil(high) + 1)
            inside = [f * 10.0**power for power in powers for f in factors if low <= math.log10(f) + power <= high]
            every = -(-len(inside) // most)
            # A short range may hold none of these: then ticks are as on a linear axis.
            values = inside[::every] if len(inside) > 1 else _even(10**low, 10**high, most)
        say = _percent if self.axis.share else _time(max(map(abs, values), default=0.0)) if self.axis.time else _say
        return [(self.place(value), say(value)) for value in values]


class _Panel:
    """One chart, drawn when it is made. What belongs to its n-th series has the id NAME-n."""

    def __init__(self, svg: ET.Element, chart: Chart, *, left: float, top: float, width: float) -> None:
        self.chart = chart
        self.group = _add(svg, "g", id=chart.name)
        self.bars = [each for each in chart.series if isinstance(each, Bars)]
        self.groups = list(dict.fromkeys(each.group or each.name for each in self.bars))
        self.heat = next((each for each in chart.series if isinstance(each, HeatMap)), None)
        self.bases = dict(self._stacked())
        legend = list(self._legend(width - 24))
        self.height = TITLE + chart.height + LEGEND * len(legend)
        self.x, self.y = self._scale("x"), self._scale("y")
        self.y.start, self.y.end = top + TITLE + chart.height - (40 if chart.x.title else 24), top + TITLE + 4
        y_ticks = self.y.ticks(14 if chart.y.kind == "category" else 34)
        room = min(max((_wide(text) for _, text in y_ticks), default=0), 0.4 * width)
        self.x.start = left + 20 + room + (TEXT + 6 if chart.y.title else 0)
        self.x.end = left + width - (70 if self.heat else 16)
        names = self.chart.categories("x") if chart.x.kind == "category" else [text for _, text in chart.x.ticks]
        x_ticks = self.x.ticks(min(max(map(_wide, names), default=40) + 10, 100))
        _text(self.group, left + width / 2, top + 15, chart.title, "middle", size=13)
        self._axes(left, x_ticks, y_ticks, room)
        clip = _add(self.group, "clipPath", id=f"{chart.name}-inside")
        inside = (self.x.start, self.y.end, self.x.end - self.x.start, self.y.start - self.y.end)
        self._rectangle(clip, *inside)
        self.inside = _add(self.group, "g", clip_path=f"url(#{chart.name}-inside)")
        for mark in chart.marks:
            if isinstance(mark, Rule | Shade):
                self._mark(mark)
        for number, series in enumerate(chart.series):
            self._series(number, series)
        for mark in chart.marks:
            if isinstance(mark, Label):
                self._label(mark)
        for line, entries in enumerate(legend):
            y = top + TITLE + chart.height + LEGEND * line + 9
            x = left + (width - sum(length for *_, length in entries)) / 2
            for kind, colour, dash, name, length in entries:
                style = {"stroke": colour, "stroke_width": 2.5, "stroke_dasharray": DASHES[dash]}
                if kind == "line":
                    _add(self.group, "path", d=f"M{x:g} {y:g}h18", **style)
                else:
                    opacity = 0.3 if kind == "shade" else 1
                    self._rectangle(self.group, x, y - 5, 18, 10, fill=colour, opacity=opacity)
                _text(self.group, x + 23, y + 4, name)
                x += length

    # -- what has to be in sight

    def _stacked(self) -> Iterator[tuple[int, list[float]]]:
        """Where each bar or step of a stacked series begins."""
        heights: dict[tuple[str, bool], float] = defaultdict(float)
        for number, series in enumerate(self.chart.series):
            if isinstance(series, Area) or (isinstance(series, Bars) and self.chart.stacked):
                bars = isinstance(series, Bars)
                places, lengths = (series.places, series.lengths) if isinstance(series, Bars) else (series.x, series.y)
                begins = []
                for place, length in zip(places, lengths, strict=True):
                    key = str(place), bars and (length or 0) < 0
                    begins.append(heights[key])
                    heights[key] += length or 0
                yield number, begins

    def _scale(self, which: Which) -> _Scale:
        axis = self.chart.x if which == "x" else self.chart.y
        names = self.chart.categories(which) if axis.kind == "category" else []
        across = any(bars.horizontal for bars in self.bars)
        long = bool(self.bars) and across == (which == "x")  # the axis along the bars
        stacks = any(isinstance(series, Area) for series in self.chart.series)
        labels = any(isinstance(mark, Label) for mark in self.chart.marks)
        padding = 0.12 if labels and which == "x" else 0.0 if stacks and which == "x" else 0.05
        given = [value for value in self._values(which) if isinstance(value, int | float)]
        zero = axis.zero or long or (stacks and which == "y")
        return _Scale(axis, names, given, padding=0.0 if self.heat else padding, zero=zero)

    def _values(self, which: Which) -> Iterator[Value]:
        for number, series in enumerate(self.chart.series):
            if isinstance(series, Bars):
                if series.horizontal == (which == "x"):
                    for n, length in enumerate(series.lengths):
                        yield self.bases[number][n] + (length or 0) if number in self.bases else length
                    continue
                half = self._apart(series) / 2
                for place in series.places:
                    if isinstance(place, int | float):
                        yield from (place - half, place + half)
            elif which == "x":
                yield from series.x
            elif isinstance(series, Band):
                yield from (*series.low, *series.high)
            elif isinstance(series, Area):
                yield from map(sum, zip(self.bases[number], series.y, strict=True))
            else:
                yield from series.y
                if isinstance(series, Line):
                    yield from (*series.low, *series.high)
        for mark in self.chart.marks:
            if isinstance(mark, Rule) and mark.axis == which:
                yield mark.at
            elif isinstance(mark, Shade) and which == "x":
                yield from (mark.start, mark.end)

    def _apart(self, series: Bars) -> float:
        """The distance of two bars, in units of their axis."""
        places = sorted({place for place in series.places if isinstance(place, int | float)})
        return min((b - a for a, b in pairwise(places)), default=1.0)

    def _legend(self, room: float) -> Iterator[list[tuple[str, str, Dash, str, float]]]:
        """Lines of entries: kind, colour, dash, name, width. One entry alone would say what the title says."""
        found: dict[str, tuple[str, str, Dash]] = {}
        for series in self.chart.series:
            if not isinstance(series, Band | HeatMap):
                kind = "box" if isinstance(series, Bars | Area) else "line"
                dash = series.dash if isinstance(series, Line) else "solid"
                found.setdefault(series.name, (kind, COLOURS[series.colour], dash))
        for mark in self.chart.marks:
            if isinstance(mark, Rule) and mark.name:
                found.setdefault(mark.name, ("line", COLOURS[mark.colour], mark.dash))
            elif isinstance(mark, Shade) and mark.name:
                found.setdefault(mark.name, ("shade", COLOURS[mark.colour], "solid"))
        entries = [(*how, _short(name), 38 + _wide(_short(name))) for name, how in found.items()]
        line: list[tuple[str, str, Dash, str, float]] = []
        for entry in entries if len(entries) > 1 else ():
            if line and sum(length for *_, length in line) + entry[-1] > room:
                yield line
                line = []
            line.append(entry)
        if line:
            yield line

    # -- drawing

    def _axes(
        self, left: float, x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]], room: float
    ) -> None:
        x, y, chart = self.x, self.y, self.chart
        if self.heat is None:
            lines = [f"M{x.start:.1f} {at:.1f}H{x.end:.1f}" for at, _ in y_ticks if chart.y.kind != "category"]
            lines += [f"M{at:.1f} {y.start:.1f}V{y.end:.1f}" for at, _ in x_ticks if chart.x.kind != "category"]
            _add(self.group, "path", d="".join(lines), stroke=COLOURS["idle"])
        _add(self.group, "path", d=f"M{x.start:.1f} {y.end:.1f}V{y.start:.1f}H{x.end:.1f}", stroke=COLOURS["other"])
        for at, text in y_ticks:
            _text(self.group, x.start - 6, at + 4, _fitted(text, room), "end")
        for at, text in x_ticks:
            _text(self.group, at, y.start + 15, _fitted(text, 100), "middle")
        if chart.x.title:
            _text(self.group, (x.start + x.end) / 2, y.start + 33, chart.x.title, "middle")
        if chart.y.title:
            up = (y.start + y.end) / 2
            turned = _text(self.group, left + 18, up, chart.y.title, "middle")
            turned.set("transform", f"rotate(-90 {left + 18:.1f} {up:.1f})")

    def _series(self, number: int, series: Series) -> None:
        group = _add(self.inside, "g", id=f"{self.chart.name}-{number}")
        if isinstance(series, HeatMap):
            self._heat_map(group, series)
        elif isinstance(series, Bars):
            self._bars(group, number, series)
        elif isinstance(series, Band):
            d = self._along([*series.x, *reversed(series.x)], [*series.high, *reversed(series.low)])
            _add(group, "path", d=d + "Z" if d else "", fill=COLOURS[series.colour], opacity=0.15)
        elif isinstance(series, Area):
            _add(group, "path", d=self._steps(number, series), fill=COLOURS[series.colour])
        else:
            self._line(group, series)

    def _line(self, group: ET.Element, series: Series) -> None:
        assert not isinstance(series, Bars | Band | Area | HeatMap)
        colour = COLOURS[series.colour]
        line = series if isinstance(series, Line) else None
        if line is not None:
            d = self._along(line.x, line.y)
            style = {"stroke_width": line.width, "stroke_dasharray": DASHES[line.dash], "stroke_linejoin": "round"}
            _add(group, "path", d=d, stroke=colour, **style)
            for x, low, high in zip(line.x, line.low, line.high, strict=False):
                at, ends = self.x.place(x), (self.y.place(low), self.y.place(high))
                if all(map(math.isfinite, (at, *ends))):
                    caps = "".join(f"M{at - 3:.2f} {end:.2f}h6" for end in ends)
                    d = f"M{at:.2f} {ends[0]:.2f}V{ends[1]:.2f}{caps}"
                    _add(group, "path", d=d, stroke=colour, stroke_width=1.2)
        if line is None or line.markers:
            for x, y in zip(series.x, series.y, strict=True):
                at, up = self.x.place(x), self.y.place(y)
                if math.isfinite(at) and math.isfinite(up):
                    _add(group, "circle", cx=f"{at:.2f}", cy=f"{up:.2f}", r=3, fill=colour)

    def _along(self, xs: Sequence[Value], ys: Sequence[Value]) -> str:
        d, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            at, up = self.x.place(x), self.y.place(y)
            if math.isfinite(at) and math.isfinite(up):
                d.append(f"{pen}{at:.2f} {up:.2f}")
                pen = "L"
            else:
                pen = "M"  # a gap
        return "".join(d)

    def _steps(self, number: int, series: Area) -> str:
        """The outline of a stepped area: each value lasts until the next one."""
        if not series.x:
            return ""
        x = [self.x.place(at) for at in series.x]
        low = [self.y.base(at) for at in self.bases[number]]
        high = [self.y.base(base + at) for base, at in zip(self.bases[number], series.y, strict=True)]
        there = [(x[n + side], high[n]) for n in range(len(x) - 1) for side in (0, 1)] or [(x[0], high[0])]
        back = [(x[n + side], low[n]) for n in reversed(range(len(x) - 1)) for side in (1, 0)]
        return "M" + "L".join(f"{at:.2f} {up:.2f}" for at, up in there + back) + "Z"

    def _bars(self, group: ET.Element, number: int, series: Bars) -> None:
        along, side = (self.x, self.y) if series.horizontal else (self.y, self.x)
        beside = 1 if self.chart.stacked else len(self.groups)
        share = 1.0 if len(series.places) > MANY_BARS else BAR_WIDTH
        wide = side.unit * (1.0 if side.axis.kind == "category" else self._apart(series)) * share / beside
        shift = (self.groups.index(series.group or series.name) - (beside - 1) / 2) * wide if beside > 1 else 0.0
        for n, (place, length) in enumerate(zip(series.places, series.lengths, strict=True)):
            base = self.bases[number][n] if number in self.bases else 0.0
            middle, start, end = side.place(place) + shift, along.base(base), along.base(base + (length or 0))
            if not math.isfinite(middle) or not math.isfinite(end):
                continue
            first, last = middle - wide / 2, middle + wide / 2
            corners = [(start, first), (end, first), (end, last), (start, last)]
            if not series.horizontal:
                corners = [(x, y) for y, x in corners]
            d = "M" + "L".join(f"{x:.3f} {y:.3f}" for x, y in corners) + "Z"
            bar = _add(group, "g", id=f"{self.chart.name}-{number}-{n}")
            _add(bar, "path", d=d, fill=COLOURS[series.colour])

    def _heat_map(self, group: ET.Element, series: HeatMap) -> None:
        # Cells have equal sizes, also along an axis of numbers.
        wide, tall = (self.x.end - self.x.start) / len(series.x), (self.y.start - self.y.end) / len(series.y)
        texts = [[("" if cell is None else f"{cell:.3g}") for cell in row] for row in series.cells]
        written = series.written and all(_wide(text) + 4 <= wide for row in texts for text in row)
        for row, (name, cells) in enumerate(zip(series.y, series.cells, strict=True)):
            at = self.y.place(name) if self.chart.y.kind == "category" else self.y.start - (row + 0.5) * tall
            for column, cell in enumerate(cells):
                if cell is None:
                    continue
                colour, dark = _shade(series, cell / (series.top or 1.0))
                left = self.x.start + column * wide
                self._rectangle(group, left, at - tall / 2, wide + 0.3, tall + 0.3, fill=colour)
                if written:
                    ink = COLOURS["card" if dark else "ink"]
                    _text(group, left + wide / 2, at + 4, texts[row][column], "middle", fill=ink)
        # The scale beside the map: what a colour means.
        right, steps = self.x.end + 10, 24
        step = (self.y.start - self.y.end) / steps
        for n in range(steps):
            colour, _ = _shade(series, (n + 0.5) / steps)
            self._rectangle(self.group, right, self.y.start - (n + 1) * step, 10, step + 0.4, fill=colour)
        for part, drop in ((0.0, 0), (0.5, 4), (1.0, 9)):
            at = self.y.start - part * (self.y.start - self.y.end) + drop
            _text(self.group, right + 13, at, _say(part * series.top))
        _text(self.group, right + 55, self.y.start + 15, series.unit, "end")

    def _mark(self, mark: Rule | Shade) -> None:
        colour, x, y = COLOURS[mark.colour], self.x, self.y
        if isinstance(mark, Shade):
            left, right = sorted((x.place(mark.start), x.place(mark.end)))
            self._rectangle(self.inside, left, y.end, right - left, y.start - y.end, fill=colour, opacity=0.15)
            return
        at = (x if mark.axis == "x" else y).place(mark.at)
        if math.isfinite(at):
            d = f"M{at:.2f} {y.start:.2f}V{y.end:.2f}" if mark.axis == "x" else f"M{x.start:.2f} {at:.2f}H{x.end:.2f}"
            _add(self.inside, "path", d=d, stroke=colour, stroke_width=1.2, stroke_dasharray=DASHES[mark.dash])

    def _label(self, label: Label) -> None:
        right, down, anchor = SIDES[label.side]
        at, up = self.x.place(label.x), self.y.place(label.y)
        if math.isfinite(at) and math.isfinite(up):
            _text(self.group, at + right, up + down, label.text, anchor)

    def _rectangle(self, parent: ET.Element, x: float, y: float, width: float, height: float, **style: object) -> None:
        size = {"width": f"{max(width, 0):.2f}", "height": f"{max(height, 0):.2f}"}
        _add(parent, "rect", x=f"{x:.2f}", y=f"{y:.2f}", **size, **style)


def _even(low: float, high: float, most: int) -> list[float]:
    """Round numbers at equal distances."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-6)
    return [n * step for n in range(first, last + 1)]


def _shade(series: HeatMap, share: float) -> tuple[str, bool]:
    """The colour of a cell, and whether it is dark."""
    names = SCALES[series.colours]
    at = min(max(share, 0.0), 1.0) * (len(names) - 1)
    start = min(int(at), len(names) - 2)
    a, b = (bytes.fromhex(COLOURS[name][1:]) for name in names[start : start + 2])
    mixed = [round(one + (other - one) * (at - start)) for one, other in zip(a, b, strict=True)]
    return "#" + bytes(mixed).hex(), sum(mixed) < 1.5 * 255


def _say(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _time(largest: float) -> Callable[[float], str]:
    """Seconds as text, in the unit that suits the largest of them."""
    unit, scale = ("s", 1.0) if largest >= 1 else ("ms", 1e3) if largest >= 1e-4 else ("µs", 1e6)
    return lambda value: f"{_say(value * scale)} {unit}"


def _wide(text: str) -> float:
    return len(text) * TEXT * LETTER


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _fitted(text: str, room: float) -> str:
    letters = max(int(room / (TEXT * LETTER)), 1)
    return text if _wide(text) <= room + 1 else text[: letters - 1] + "…"


def _add(parent: ET.Element, tag: str, **attributes: object) -> ET.Element:
    named = {name.replace("_", "-"): UNPRINTABLE.sub("?", str(value)) for name, value in attributes.items()}
    return ET.SubElement(parent, tag, named)


def _text(
    parent: ET.Element, x: float, y: float, text: str, anchor: str = "start", *, size: int = TEXT, fill: str = ""
) -> ET.Element:
    style = {"text_anchor": anchor, "font_size": size, "fill": fill or COLOURS["ink"]}
    made = _add(parent, "text", x=f"{x:.1f}", y=f"{y:.1f}", **style)
    made.text = UNPRINTABLE.sub("?", text)
    return made
