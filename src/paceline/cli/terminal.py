"""Terminal output that verbs share: consoles, bars and plots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from paceline.charts.chart import Chart
from paceline.record.stopping import stop
from paceline.reports.wording import BAR
from paceline.units import seconds


def stderr() -> Console:
    """The console for progress and problems; also for the summary of a run, whose standard output is the script's."""
    return Console(stderr=True, highlight=False, markup=False)


def results(*, json: bool = False) -> Console:
    """The console for the results of a verb: standard output, unless that belongs to the JSON document."""
    return stderr() if json else Console(highlight=False, markup=False)


def grid(*headings: str, right: Collection[str] = (), **how: Any) -> Table:
    """A table without lines, for what is no report. `right`: the columns of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), **{"show_header": bool(headings), **how})
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


class TimeLeft(ProgressColumn):
    """The time until a bar is full, at the rate of the last half minute; nothing while that is unknown."""

    def render(self, task: Task) -> Text:
        left = None if task.total is None or task.finished else task.time_remaining
        return Text("" if left is None else f"{seconds(left)} left")


def progress_bar(console: Console, *columns: ProgressColumn, quiet: bool) -> Progress:
    """A bar for a verb's trials, gone when they are over; `columns` stand before the time spent and the time left.
    None is drawn where standard error is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR),
        *columns,
        TimeElapsedColumn(),
        TimeLeft(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def plotted(charts: Sequence[Chart], path: Path, about: str) -> Path | None:
    """Draws charts into the record and returns the file. None if there is no chart, or if it cannot be written.
    `about`: the script, or another title."""
    from paceline.charts.svg import write_svg

    if not charts:
        return None
    try:
        write_svg(charts, path, title=Path(about).name)
    except OSError as error:
        stop(path, error)
        return None
    return path
