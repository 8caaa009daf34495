"""What a verb reports, as plain data.

`reports.terminal` prints a report, pages of `view` show it, and `charts.svg` draws its charts into the record; JSON is
the verdict that the report is made from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from paceline.charts.chart import Chart
from paceline.reports.wording import NUMERIC, Kind

Tone = Literal["", "strong", "quiet", "good", "bad", "warn", "live"]
Where = Literal["", "page", "terminal"]  # empty: both
Row: TypeAlias = Mapping[str, Any]
LOG = "Its log: "  # the last line of a failure's message
# Where a traceback begins; that of an error in the script's syntax begins with the place.
TRACEBACK = re.compile(r'^(Traceback \(most recent call last\):|  File "[^"\n]+", line \d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Figure:
    """One key figure of a page. `how` says how the figure was measured; `said` is its line in a terminal, empty if a
    table has it there."""

    label: str
    value: str
    how: str
    detail: str = ""
    tone: Tone = ""
    large: bool = False  # one of the two figures that a person looks for first
    said: str = ""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A message, and what to type. `code` is shown below the text as it is, in a fixed font: a traceback."""

    text: str
    tone: Tone = ""
    advice: str = ""
    code: str = ""
    links: Sequence[tuple[str, str]] = ()
    kind: str = field(default="note", init=False)

    @classmethod
    def of_failure(cls, message: str) -> Sentence:
        """A worker's failure, with its traceback in a fixed font."""
        found = TRACEBACK.search(message)
        at = found.start() if found else len(message)
        head, whole = message[:at], message[at:].rstrip()
        code, _, log = whole.rpartition("\n")
        if not log.startswith(LOG):
            code, log = whole, ""
        return cls(head.strip(), "bad", log, code)


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in sentences. `how` says where the numbers come from."""

    title: str
    lines: Sequence[str]
    how: str = ""
    kind: str = field(default="words", init=False)


@dataclass(frozen=True, slots=True)
class Command:
    """A command to copy."""

    title: str
    command: str
    about: str = ""
    kind: str = field(default="command", init=False)


@dataclass(frozen=True, slots=True)
class Text:
    """Preformatted text, such as a log. Of a `diff`, added and removed lines are coloured."""

    title: str
    text: str
    diff: bool = False
    about: str = ""
    kind: str = field(default="text", init=False)


@dataclass(frozen=True, slots=True)
class Column:
    """`key` names the column in rows and downloads; `how` says how the values were measured."""

    key: str
    title: str
    how: str = ""
    kind: Kind = "text"
    _kw: KW_ONLY
    link: Callable[[Row], str | None] | None = None
    bar: bool = False  # also draw the share as a bar
    wrap: bool = False  # long text continues on the next line
    optional: bool = False  # hidden if all its values are zero, such as times of a device
    narrow: bool = True  # shown on a phone
    spare: bool = False  # only in downloads
    text: str = ""  # the key of the words to show in place of the value
    under: str = ""  # the key of a second, quiet line of the cell
    curve: str = ""  # the key of numbers that are drawn beside the value, as a small line
    chip: bool = False  # the value is one of a few words, shown as a chip
    ends: Sequence[Column] = ()  # of an interval: columns of their own on a page; a terminal joins them as "low–high"
    on: Where = ""
    part: str = ""  # a terminal shows the columns of each part as a table with this title, below the others
    short: str = ""  # the title in a terminal, which has less room
    wide: bool = False  # a terminal shows it if it is wide
    cut: Literal["", "start", "end"] = ""  # where a terminal cuts a long text, such as the name of a C++ template

    @property
    def numeric(self) -> bool:
        return self.kind in NUMERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`name` identifies the table on its page. `rows` are in the default order."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = "No rows."
    about: str = ""
    choose: str = ""  # the key that identifies a row, if rows can be ticked, to compare them
    mark: str = ""  # the key of a flag: rows with this flag are highlighted
    good: bool = False  # highlight as good, not as a warning
    filters: Sequence[str] = ()  # keys of columns by whose values the rows can be chosen
    whole: bool = False  # as long as its rows: the table does not scroll within the page
    on: Where = ""
    by: str = ""  # the key of the title under which a terminal shows a row
    kind: str = field(default="grid", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer of a verb. A page has it in this order. A terminal, whose last lines are read first, has the tables
    before what is said."""

    lead: Sequence[Sentence] = ()  # of a terminal: what was measured
    figures: Sequence[Figure] = ()
    said: Sequence[Sentence | Words | Command] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    after: Sequence[Sentence | Text] = ()
