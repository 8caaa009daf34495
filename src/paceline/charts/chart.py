"""The description of a chart: series on two axes, marks and a caption. Plain data, independent of the renderer.

`charts.svg` draws a chart into a record, `charts.browser` on a page. A colour is a palette name (`data`, `forward` …
`accent`, `ink`), so that a page can switch between light and dark. Text may come from a record, so renderers escape
text. `None` in a list of numbers is a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

Value: TypeAlias = float | str | None  # a string is the name of a category
Dash = Literal["solid", "dashed", "dotted", "dash-dot", "long", "long-dot"]
DASHES: tuple[Dash, ...] = get_args(Dash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    title: str = ""
    kind: Literal["linear", "log", "category"] = "linear"
    limits: tuple[float, float] | None = None  # None: from the data
    zero: bool = False  # starts at zero
    share: bool = False  # 0.5 is shown as 50 %
    time: bool = False  # values are seconds: 0.02 is shown as 20 ms, and the whole axis in one unit
    ticks: Sequence[tuple[float, str]] = ()  # empty: chosen by the renderer
    reverse: bool = False  # the first category is on top


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`low` and `high` are the ends of error bars. `text` names each point when the mouse is over it."""

    name: str
    x: Sequence[Value]
    y: Sequence[float | None]
    colour: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dash: Dash = "solid"
    width: float = 1.5
    markers: bool = False
    text: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """`text` names each point when the mouse is over it."""

    name: str
    x: Sequence[Value]
    y: Sequence[float | None]
    colour: str
    text: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars of one `group` share a position, beside the bars of other groups. A stacked chart stacks all bars."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    colour: str
    horizontal: bool = False
    group: str = ""

    @property
    def places(self) -> Sequence[Value]:
        return self.y if self.horizontal else self.x

    @property
    def lengths(self) -> Sequence[float | None]:
        found = self.x if self.horizontal else self.y
        return [None if value is None else float(value) for value in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The area between two lines. A band has no legend entry, because it belongs to a line of the same colour."""

    name: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A stepped area, on top of the areas before it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """One row of `cells` for each `y`. `colours`: `rates` if more is better, `heat` if more is worse."""

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    cells: Sequence[Sequence[float | None]]
    unit: str
    colours: Literal["rates", "heat"]
    high: float | None = None  # the end of the colour scale, which starts at zero; None: the largest cell

    @property
    def top(self) -> float:
        if self.high is not None:
            return self.high
        return max((cell for row in self.cells for cell in row if cell is not None), default=1.0)

    @property
    def written(self) -> bool:
        """Whether there is room for the number in each cell."""
        return max(len(self.x), len(self.y)) <= 16


Series: TypeAlias = Line | Points | Bars | Band | Area | HeatMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A straight line across the chart, at a value of one axis. A named rule has a legend entry."""

    axis: Literal["x", "y"]
    at: float
    colour: str = "other"
    dash: Dash = "dotted"
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A shaded range of the x axis. A named shade has a legend entry."""

    start: float
    end: float
    colour: str = "other"
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text beside a point."""

    x: Value
    y: Value
    text: str
    side: Literal["right", "below right", "above right", "above left", "below left"] = "right"


Mark: TypeAlias = Rule | Shade | Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`name` is unique on a page. `caption` says how the numbers were measured, and what the marks mean."""

    name: str
    title: str
    caption: str
    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    marks: Sequence[Mark] = ()
    stacked: bool = False  # bars on top of each other
    height: int = 260  # pixels on a page
    wide: bool = False  # as wide as the page
    kind: ClassVar[str] = "chart"  # the block kind, by which a page selects the template

    def categories(self, axis: Literal["x", "y"]) -> list[str]:
        """The names along an axis of categories, in the order in which the series have them."""
        return list(dict.fromkeys(str(value) for each in self.series for value in _values(each, axis)))


def _values(series: Series, axis: str) -> Sequence[Value]:
    if axis == "x":
        return series.x
    return () if isinstance(series, Band) else series.y
