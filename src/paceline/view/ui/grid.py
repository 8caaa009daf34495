"""A table on a page, with sorting, filtering and downloads. Every column says how its values were measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from paceline.view.records.wording import NUMERIC, Kind, say

SHOWN = 500  # rows on a page; if there are more, the server sorts and filters, and a download has all rows
LONGEST = 200  # characters of a filter

Row = Mapping[str, Any]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a spreadsheet's formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`key` names the column in rows and downloads; `how` says how the values were measured."""

    key: str
    title: str
    how: str
    kind: Kind = "text"
    link: Callable[[Row], str | None] | None = None
    bar: bool = False  # also draw the share as a bar
    wrap: bool = False  # long text continues on the next line
    optional: bool = False  # a page hides the column if all its values are zero, such as times of a device
    narrow: bool = True  # shown on a phone
    spare: bool = False  # only in downloads
    text: str = ""  # the key of the words to show in place of the value
    under: str = ""  # the key of a second, quiet line of the cell
    curve: str = ""  # the key of numbers that are drawn beside the value, as a small line
    chip: bool = False  # the value is one of a few words, shown as a chip

    @property
    def numeric(self) -> bool:
        return self.kind in NUMERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """`name` identifies the grid on its page. `rows` are in the default order."""

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
    # Set by `arranged`:
    sort: str = ""
    descending: bool = False
    query: str = ""
    only: Mapping[str, str] = field(default_factory=dict)  # by key of `filters`: the value that rows must have
    choices: Sequence[tuple[Column, Sequence[str]]] = ()  # the filters, each with the values to choose from
    total: int = 0
    base: str = ""  # the page's address, for links and downloads
    kept: Sequence[tuple[str, str]] = ()  # the other parameters of the page's query
    hidden: frozenset[str] = frozenset()  # spare columns, and those without any value; a download has them
    kind: str = field(default="grid", init=False)

    def arranged(self, asked: Mapping[str, str], *, base: str = "", kept: Sequence[tuple[str, str]] = ()) -> Grid:
        """This grid, filtered and sorted by the page's query, if the query names this grid."""
        mine = asked.get("grid", self.name) == self.name
        query = asked.get("q", "")[:LONGEST].strip() if mine else ""
        sort = asked.get("sort", "") if mine else ""
        descending = mine and asked.get("order") == "desc"
        rows = list(self.rows)
        wanted = {key: asked.get(f"only-{key}", "")[:LONGEST] for key in self.filters} if mine else {}
        only = {key: value for key, value in wanted.items() if value}
        rows = [row for row in rows if all(str(row.get(key)) == value for key, value in only.items())]
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
            only=only,
            choices=[
                (column, found)
                for key in self.filters
                for column in self.columns
                if column.key == key and len(found := sorted({str(row[key]) for row in self.rows if row.get(key)})) > 1
            ],
            total=len(rows),
            base=base,
            kept=kept,
            hidden=frozenset(
                column.key for column in self.columns if column.spare or (self.rows and self._is_empty(column))
            ),
        )

    def _is_empty(self, column: Column) -> bool:
        empty: tuple[Any, ...] = (None, "", [], 0, 0.0) if column.optional else (None, "", [])
        return column.kind != "flag" and all(row.get(column.key) in empty for row in self.rows)

    @property
    def shown_columns(self) -> Sequence[Column]:
        return [column for column in self.columns if column.key not in self.hidden]

    def address(self, *, sort: str = "", descending: bool = False) -> str:
        """The query that requests this grid in this order."""
        wanted = [*self.kept, ("grid", self.name)]
        wanted += [("q", self.query)] if self.query else []
        wanted += [(f"only-{key}", value) for key, value in self.only.items()]
        wanted += [("sort", sort)] if sort else []
        wanted += [("order", "desc")] if sort and descending else []
        return "?" + urlencode(wanted)

    @property
    def shown(self) -> Sequence[Row]:
        return self.rows[:SHOWN]

    @property
    def complete(self) -> bool:
        """Whether the page has all rows, so that the browser can sort and filter without the server."""
        return not self.query and not self.only and len(self.rows) <= SHOWN

    def _texts(self, row: Row) -> list[str]:
        said = [say(row.get(column.key), column.kind) for column in self.columns]
        said += [str(row.get(key) or "") for column in self.columns for key in (column.text, column.under) if key]
        return [text.lower() for text in said]

    # -- downloads -------------------------------------------------------------------------------------------------

    def as_csv(self) -> str:
        """All rows as CSV, with plain numbers. A leading apostrophe keeps text from running as a formula."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow([column.key for column in self.columns])
        for row in self.rows:
            writer.writerow([_harmless(row.get(column.key)) for column in self.columns])
        return text.getvalue()

    def as_json(self) -> bytes:
        """All rows as JSON, and how each column was measured."""
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
    """Rows without a value come last in both directions."""
    present = [row for row in rows if row.get(column.key) is not None]
    missing = [row for row in rows if row.get(column.key) is None]

    def by(row: Row) -> tuple[int, float, str]:
        value = row[column.key]
        if isinstance(value, bool | int | float):
            return (0, float(value), "")
        return (1, 0.0, say(value, column.kind).lower())

    return sorted(present, key=by, reverse=descending) + missing


def _harmless(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
