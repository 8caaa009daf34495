"""The blocks that pages consist of. A block holds the content; its template defines the appearance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from paceline.charts.chart import Chart
from paceline.reports.report import Command, Figure, Sentence, Text, Tone, Words
from paceline.view.records.layout import StepSpans
from paceline.view.records.path import PathSpans
from paceline.view.ui.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictBlock:
    """What was found, in one sentence, and what to type next."""

    sentence: str
    command: str = ""
    about: str = ""
    tone: Tone = ""
    kind: str = field(default="verdict", init=False)


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: Sequence[Figure]
    kind: str = field(default="tiles", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBlock:
    """A total and its parts, as one bar. A part is (name, seconds, colour). `missing`: parts that were not measured."""

    title: str
    how: str
    parts: Sequence[tuple[str, float, str]]
    total: float
    missing: Sequence[str] = ()
    name: str = "split"
    kind: str = field(default="split", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingBlock:
    """One finding. `href` leads to `page`, which shows the evidence; `where` is a line of the script; `command` is what
    to type, `after` a change of the script by hand."""

    rule: str
    title: str
    evidence: Sequence[tuple[str, str]]
    mod: str
    advice: str
    command: str
    after: bool
    predicted: float | None
    how: str
    measured: float | None
    tied: bool
    proof: str
    where: str
    href: str
    page: str


@dataclass(frozen=True, slots=True)
class Findings:
    findings: Sequence[FindingBlock]
    kind: str = field(default="findings", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsBlock:
    """Pairs of name and value that are not measurements."""

    title: str
    facts: Sequence[tuple[str, str]]
    open: bool = False
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """SVGs that Paceline drew. Pages show the one that suits as an image, in which no script can run: `drawings` are by
    theme (`light`, `dark`) and width (`wide`, `narrow`)."""

    title: str
    drawings: Mapping[tuple[str, str], str]
    kind: str = field(default="picture", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Charts over the steps of a run, or of several, which share controls: smoothing, logarithmic axes, and `over`, the
    choice of x axis."""

    title: str
    charts: Sequence[Chart]
    over: str
    choices: Mapping[str, str]
    kind: str = field(default="curves", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Spans on tracks, drawn on a canvas. The browser loads the spans from `source`, and the critical path from
    `path_source` when it is asked for; in a report, `data` and `path` hold them. If there are many spans, the browser
    first draws those of `overview`."""

    source: str = ""
    overview: str = ""
    path_source: str = ""  # empty: there is no trace to find a path in
    data: StepSpans | None = None
    path: PathSpans | None = None
    step: int = 0
    until: int = 0
    before: tuple[int, int] | None = None  # the steps before and after those drawn, as many as are drawn
    after: tuple[int, int] | None = None
    first: int = 0
    last: int = 0
    count: int = 0  # of all steps that can be drawn
    base: str = ""
    kind: str = field(default="timeline", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A run in progress. The browser follows `source`, and extends the single line of each chart as steps arrive."""

    source: str
    charts: Sequence[Chart]
    kind: str = field(default="live", init=False)


Block: TypeAlias = (
    VerdictBlock
    | Tiles
    | Chart
    | SplitBlock
    | Findings
    | Sentence
    | Words
    | FactsBlock
    | Command
    | Text
    | Picture
    | Curves
    | TimeLine
    | Live
    | Grid
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    blocks: Sequence[Block]
    lead: str = ""  # one sentence below the title …
    lead_is_command: bool = False  # … or the command that was typed, to copy

    def grid(self, name: str) -> Grid | None:
        return next((block for block in self.blocks if isinstance(block, Grid) and block.name == name), None)
