"""The tables of `paceline runs`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from rich.console import Console
from rich.table import Table

from paceline.record.about.labels import Labels
from paceline.record.about.origin import read_origin
from paceline.reports.figure_text import slowest
from paceline.units import count, rate, seconds, size
from paceline.view.records.library import RecordEntry

# Columns, and the least width of the terminal in which each is shown.
COLUMNS = {
    "record": 0,
    "verb": 0,
    "status": 0,
    "workers": 110,
    "samples/s": 60,
    "a step": 80,
    "took": 100,
    "size": 70,
}


def runs_table(entries: Sequence[RecordEntry], sizes: Mapping[str, int], width: int) -> Table:
    """One line per record, and a second one with its name and tags if it has any. A narrow terminal has fewer
    columns."""
    columns = [title for title in COLUMNS if width >= COLUMNS[title]]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in columns:
        right = title not in ("record", "verb", "status")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for entry in entries:
        figures = entry.figures
        cells = {
            "record": entry.name,
            "verb": entry.verb,
            "status": entry.state,
            "workers": str(entry.workers or ""),
            "samples/s": rate(figures.samples_per_s) if figures.samples_per_s else "",
            "a step": seconds(figures.step_time) if figures.step_time else "",
            "took": seconds(entry.seconds) if entry.seconds else "",
            "size": size(sizes[entry.name]),
        }
        style = {"failed": "red", "running": "green"}.get(entry.state, "")
        table.add_row(*(cells[title] for title in columns), style=style)
        if entry.labels:
            table.add_row(f"  {label_words(entry.labels) or entry.labels.note}", style="dim")
    return table


def label_words(labels: Labels) -> str:
    return " ".join([*([labels.name] if labels.name else []), *(f"#{tag}" for tag in labels.tags)])


def show_labels(console: Console, record: str, labels: Labels) -> None:
    console.print(f"{record}: {label_words(labels) or 'no name, no tags'}", soft_wrap=True)
    if labels.note:
        console.print(labels.note, soft_wrap=True)


def show_record(console: Console, folder: Path, entry: RecordEntry, taken: int) -> None:
    """What made a record, its labels and its figures."""
    origin, figures = read_origin(folder), entry.figures
    began = "" if entry.started is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.started))
    facts = {
        "record": str(folder),
        "name": entry.labels.name,
        "tags": " ".join(entry.labels.tags),
        "note": entry.labels.note,
        "command": entry.command or f"(not recorded) {entry.verb} {PurePath(entry.script).name}",
        "status": entry.state,
        "began": began,
        "took": seconds(entry.seconds) if entry.seconds else "",
        "size": size(taken),
        "samples/s": rate(figures.samples_per_s) if figures.samples_per_s else "",
        "a step": seconds(figures.step_time) if figures.step_time else "",
        "spread": "".join(each.said.replace("\n", " ") for each in slowest(figures)),
    }
    if origin is not None:
        facts["folder"] = origin.directory
        facts["defaults"] = "\n".join(f"{words}: {source}" for words, source in origin.defaults.items())
        facts["python"] = origin.python
        if (tree := origin.git) is not None:
            branch = f" ({tree.branch})" if tree.branch else ""
            dirty = f", {count(tree.changed, 'changed file')}: {folder / tree.diff}" if tree.diff else ""
            facts["git"] = f"{tree.commit or 'no commit yet'}{branch}{dirty or (', changed' if tree.dirty else '')}"
        facts["packages"] = " ".join(f"{name}=={version}" for name, version in origin.packages.items())
        facts |= origin.environment
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for title, value in facts.items():
        if value:
            table.add_row(title, value)
    console.print(table)
