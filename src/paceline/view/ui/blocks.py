"""What pages are made of. A block knows what it says; how that looks is its template's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from paceline.charts.chart import Chart
from paceline.view.records.spans import StepSpans
from paceline.view.ui.grid import Grid

Tone = Literal["", "good", "bad", "warn", "live"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number that matters. `how` says how it was measured."""

    label: str
    value: str
    how: str
    detail: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: Sequence[Tile]
    kind: str = field(default="tiles", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBlock:
    """A whole and its parts, as one bar: (part, seconds, colour)."""

    title: str
    how: str
    parts: Sequence[tuple[str, float, str]]
    total: float
    name: str = "split"
    kind: str = field(default="split", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingBlock:
    """What a rule said. `href` leads to `page`, which shows the evidence; `where` is a line of the script."""

    rule: str
    title: str
    evidence: Sequence[tuple[str, str]]
    mod: str
    advice: str
    predicted: float | None
    how: str
    measured: float | None
    proof: str
    where: str
    href: str
    page: str


@dataclass(frozen=True, slots=True)
class Findings:
    findings: Sequence[FindingBlock]
    kind: str = field(default="findings", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    text: str
    tone: Tone = ""
    advice: str = ""
    links: Sequence[tuple[str, str]] = ()
    kind: str = field(default="note", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsBlock:
    """Names and what they are: no measurements."""

    title: str
    facts: Sequence[tuple[str, str]]
    open: bool = False
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text as it was written: a log, a patch."""

    title: str
    text: str
    kind: str = field(default="text", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An SVG of our own. It is shown as an image, in which nothing can run."""

    title: str
    svg: str
    kind: str = field(default="picture", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Spans on tracks, drawn on a canvas. `source` is where the browser gets them; in a report they are in `data`."""

    source: str = ""
    data: StepSpans | None = None
    step: int = 0
    before: int | None = None  # the steps beside it that can be drawn
    after: int | None = None
    first: int = 0
    last: int = 0
    base: str = ""
    kind: str = field(default="timeline", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A run in progress; the browser follows `source`, and draws each chart's only line as its steps come."""

    source: str
    charts: Sequence[Chart]
    kind: str = field(default="live", init=False)


Block: TypeAlias = Tiles | Chart | SplitBlock | Findings | Note | FactsBlock | Text | Picture | TimeLine | Live | Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    blocks: Sequence[Block]
    lead: str = ""  # one sentence below the title

    def grid(self, name: str) -> Grid | None:
        return next((block for block in self.blocks if isinstance(block, Grid) and block.name == name), None)
