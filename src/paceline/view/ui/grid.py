"""A table of a page: it can be sorted, filtered and downloaded, and every column says how it was measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from paceline.view.ui.wording import NUMERIC, Kind, say

SHOWN = 500  # rows in a page: more are a download; sorting and filtering is then done over all of them, here
LONGEST = 200  # characters of a filter or a cell's text in the page

Row = Mapping[str, Any]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for a formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`key` is the row's, and the download's, name for it; `how` says how it was measured."""

    key: str
    title: str
    how: str
    kind: Kind = "text"
    link: Callable[[Row], str | None] | None = None
    bar: bool = False  # a share, drawn as well

    @property
    def numeric(self) -> bool:
        return self.kind in NUMERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """`name` is its address in the page. Rows come in the order in which they are shown unless asked otherwise."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = "Nothing here."
    about: str = ""
    choose: str = ""  # the key of a row's value, where rows can be ticked (to compare two)
    mark: str = ""  # the key of a flag: such rows stand out
    good: bool = False  # … as something good, not as something to look at
    # As asked for:
    sort: str = ""
    descending: bool = False
    query: str = ""
    total: int = 0
    base: str = ""  # the page's address, for links and downloads
    kept: Sequence[tuple[str, str]] = ()  # what else the page was asked for
    kind: str = field(default="grid", init=False)

    def arranged(self, asked: Mapping[str, str], *, base: str = "", kept: Sequence[tuple[str, str]] = ()) -> Grid:
        """Filtered and sorted as the page's query asks, if it asks this grid."""
        mine = asked.get("grid", self.name) == self.name
        query = asked.get("q", "")[:LONGEST].strip() if mine else ""
        sort = asked.get("sort", "") if mine else ""
        descending = mine and asked.get("order") == "desc"
        rows = list(self.rows)
        for word in query.lower().split():
            rows = [row for row in rows if any(word in text for text in self._texts(row))]
        column = next((column for column in self.columns if column.key == sort), None)
        if column is not None:
            rows = _sorted(rows, column, descending)
        return replace(
            self,
            rows=rows,
            sort=sort if column else "",
            descending=descending,
            query=query,
            total=len(rows),
            base=base,
            kept=kept,
        )

    def address(self, *, sort: str = "", descending: bool = False) -> str:
        """What to ask for to get this grid, sorted so: a query."""
        wanted = [*self.kept, ("grid", self.name)]
        wanted += [("q", self.query)] if self.query else []
        wanted += [("sort", sort)] if sort else []
        wanted += [("order", "desc")] if sort and descending else []
        return "?" + urlencode(wanted)

    @property
    def shown(self) -> Sequence[Row]:
        return self.rows[:SHOWN]

    @property
    def complete(self) -> bool:
        """Whether the page has all rows, so that the browser can sort and filter by itself."""
        return not self.query and len(self.rows) <= SHOWN

    def _texts(self, row: Row) -> list[str]:
        return [say(row.get(column.key), column.kind).lower() for column in self.columns]

    # -- downloads -------------------------------------------------------------------------------------------------

    def as_csv(self) -> str:
        """All rows, plain numbers. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow([column.key for column in self.columns])
        for row in self.rows:
            writer.writerow([_harmless(row.get(column.key)) for column in self.columns])
        return text.getvalue()

    def as_json(self) -> bytes:
        """All rows; with them, how each column was measured."""
        return msgspec.json.encode(
            {
                "table": self.name,
                "columns": [
                    {"key": column.key, "title": column.title, "kind": column.kind, "how": column.how}
                    for column in self.columns
                ],
                "rows": [{column.key: row.get(column.key) for column in self.columns} for row in self.rows],
            }
        )


def _sorted(rows: list[Row], column: Column, descending: bool) -> list[Row]:
    """What has no value comes last either way."""
    there = [row for row in rows if row.get(column.key) is not None]
    missing = [row for row in rows if row.get(column.key) is None]

    def by(row: Row) -> tuple[int, float, str]:
        value = row[column.key]
        if isinstance(value, bool | int | float):
            return (0, float(value), "")
        return (1, 0.0, say(value, column.kind).lower())

    return sorted(there, key=by, reverse=descending) + missing


def _harmless(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
