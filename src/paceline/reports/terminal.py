"""Prints a report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from rich.console import Console
from rich.table import Table as Grid

from paceline.reports.report import Column, Command, Figure, Report, Row, Sentence, Table, Text, Words
from paceline.reports.wording import say

STYLES = {"strong": "bold", "good": "bold green", "warn": "yellow", "bad": "red"}
DIFF = {"+": "green", "-": "red"}
SHORT = 20  # characters of a text that is not wrapped
WIDE = 100  # columns of a wide terminal
MOST_LINES = 60  # of a text; the record has the whole text


def show(console: Console, report: Report, *, quiet: bool = False) -> None:
    """Prints the tables, then what is said; with `quiet`, only problems."""
    words = [each for each in report.said if isinstance(each, Words)]
    others = [each for each in report.said if not isinstance(each, Words)]
    said = [*words, *[figure for figure in report.figures if figure.said], *others, *report.after]
    if quiet:
        said = [each for each in said if isinstance(each, Sentence) and each.tone in ("warn", "bad")]
    else:
        if report.lead:
            console.print()
        for sentence in report.lead:
            tell(console, sentence)
        for table in report.tables:
            show_table(console, table)
        console.print()
    for each in said:
        tell(console, each)


def tell(console: Console, said: Figure | Sentence | Words | Command | Text) -> None:
    """Prints one part. Sentences wrap, and commands do not, so that they can be copied."""
    match said:
        case Figure():
            console.print(said.said, style=STYLES.get(said.tone, ""), soft_wrap=True)
        case Sentence():
            console.print(said.text, style=STYLES.get(said.tone, ""), soft_wrap=True)
            if said.advice:
                console.print(f"→ {said.advice}", soft_wrap=True)
        case Words():
            for line in said.lines:
                console.print(f"{line}\n")
        case Command():
            console.print(f"{said.title}: {said.command}", style="bold", soft_wrap=True)
            if said.about:
                console.print(f"  {said.about}", soft_wrap=True)
        case Text():
            lines = said.text.splitlines()
            console.print(f"\n{said.title}", style="bold", soft_wrap=True)
            for line in lines[:MOST_LINES]:
                console.print(line, style=DIFF.get(line[:1], "") if said.diff else "", soft_wrap=True)
            if len(lines) > MOST_LINES:
                console.print(f"… {len(lines) - MOST_LINES} more lines. {said.about}", soft_wrap=True)


def show_table(console: Console, table: Table) -> None:
    """Prints a table: the rows of each title, and the columns of each part, as one of their own."""
    if table.on == "page":
        return
    for title, found in groupby(table.rows, key=lambda row: str(row[table.by]) if table.by else ""):
        rows = list(found)
        shown = [column for column in table.columns if _is_shown(column, rows, wide=console.width >= WIDE)]
        for part in dict.fromkeys(column.part for column in shown):
            console.print()
            if title or part:
                console.print(part or title, style="bold")
            first = [] if shown[0].part == part else shown[:1]
            console.print(_grid([*first, *(column for column in shown if column.part == part)], rows, table))


def _is_shown(column: Column, rows: Sequence[Row], *, wide: bool) -> bool:
    known = any(row.get(column.key) not in (None, "", []) for row in rows)
    return column.on != "page" and not column.spare and known and (wide or not column.wide)


def _grid(columns: Sequence[Column], rows: Sequence[Row], table: Table) -> Grid:
    made = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for column in columns:
        side: Literal["left", "right"] = "right" if column.numeric else "left"
        short = [len(cell) for row in rows if len(cell := _cells(row, column)[0]) < SHORT] if column.wrap else []
        made.add_column(column.title, justify=side, no_wrap=not column.wrap, min_width=max(short, default=0))
        if column.ends:
            made.add_column("low–high", justify="right", no_wrap=True)
    for row in rows:
        marked = table.mark and row.get(table.mark)
        cells = [cell for column in columns for cell in _cells(row, column)]
        made.add_row(*cells, style=("bold" if table.good else "red") if marked else "")
        under = [str(row.get(column.under) or "") for column in columns]
        if any(under[1:]):
            made.add_row(*(f"  {text}" if not n else text for n, text in enumerate(under)), style="dim")
    return made


def _cells(row: Row, column: Column) -> list[str]:
    value = row.get(column.key) if column.title else row.get(column.key) or ""
    words = str(row[column.text]) if column.text else say(value, column.kind) if value != "" else ""
    ends = [say(row.get(end.key), end.kind).removesuffix("×") for end in column.ends]
    return [words, *(["–".join(ends) if row.get(column.key) is not None else "–"] if ends else [])]
