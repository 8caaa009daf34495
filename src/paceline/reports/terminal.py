"""Prints a report on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from rich.console import Console
from rich.table import Table as Grid

from paceline.reports.report import Column, Command, Figure, Report, Row, Sentence, Table, Text, Words
from paceline.reports.wording import say

Said = Figure | Sentence | Words | Command | Text
STYLES = {"strong": "bold", "quiet": "dim", "good": "bold green", "warn": "yellow", "bad": "red"}
DIFF = {"+": "green", "-": "red"}
SHORT = 20  # characters of a text that is not wrapped
FIGURES = 48  # terminal columns for the numbers beside a name
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
        tell(console, *report.lead)
        for table in report.tables:
            show_table(console, table)
        console.print()
    tell(console, *said)


def tell(console: Console, *said: Said) -> None:
    """Prints sentences, commands, and so on."""
    for each in said:
        _tell(console, each)


def _tell(console: Console, said: Said) -> None:
    """Words are wrapped, and other parts are not, so that commands and paths can be copied."""
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
            columns = [*first, *(column for column in shown if column.part == part)]
            console.print(_grid(columns, rows, table, room=max(console.width - FIGURES, 24)))


def _is_shown(column: Column, rows: Sequence[Row], *, wide: bool) -> bool:
    empty: tuple[object, ...] = (None, "", [], 0, 0.0) if column.optional else (None, "", [])
    known = any(row.get(column.key) not in empty for row in rows)
    return column.on != "page" and not column.spare and known and (wide or not column.wide)


def _grid(columns: Sequence[Column], rows: Sequence[Row], table: Table, *, room: int) -> Grid:
    made = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for column in columns:
        side: Literal["left", "right"] = "right" if column.numeric else "left"
        names = [_cells(row, column)[0] for row in rows] if column.wrap and column.title else []
        least, title = max((len(name) for name in names if len(name) < SHORT), default=0), column.short or column.title
        made.add_column(title, justify=side, no_wrap=not column.wrap, min_width=least)
        if column.ends:
            made.add_column("low–high", justify="right", no_wrap=True)
    for row in rows:
        marked = table.mark and row.get(table.mark)
        cells = [_cut(cell, column, room) for column in columns for cell in _cells(row, column)]
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


def _cut(text: str, column: Column, room: int) -> str:
    text = "".join(sign if sign.isprintable() else "?" for sign in text)
    if not column.cut or len(text) <= room:
        return text
    return "…" + text[-room + 1 :] if column.cut == "start" else text[: room - 1] + "…"
