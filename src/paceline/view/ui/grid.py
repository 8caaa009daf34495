"""A table on a page, with sorting, filtering and downloads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from paceline.reports.report import Column, Row, Table
from paceline.reports.wording import say

SHOWN = 500  # rows on a page; if there are more, the server sorts and filters, and a download has all rows
LONGEST = 200  # characters of a filter

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a spreadsheet's formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Table):
    """A table as a page shows it. It has the rows of all parts, and the ends of intervals in columns of their own."""

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

    @classmethod
    def of(cls, table: Table) -> Grid:
        columns = [each for column in table.columns if column.on != "terminal" for each in (column, *column.ends)]
        given = {field.name: getattr(table, field.name) for field in fields(Table) if field.init}
        return cls(**given | {"columns": columns})

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
