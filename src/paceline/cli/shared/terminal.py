"""Terminal output that verbs share: consoles, bars, plots, and the table of where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from paceline.charts.chart import Chart
from paceline.record.phases import CHECK, EVALUATION, PHASES
from paceline.record.stopping import stop
from paceline.units import percent, seconds

BAR = 24  # columns of a full bar
SHOWN = 0.01  # of a step: shorter checks are left out


def stderr() -> Console:
    """The console for progress and problems; also for the summary of a run, whose standard output is the script's."""
    return Console(stderr=True, highlight=False, markup=False)


def results(*, json: bool) -> Console:
    """The console for the results of a verb: standard output, unless that belongs to the JSON document."""
    return stderr() if json else Console(highlight=False, markup=False)


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


def time_table(
    step: Mapping[str, float | None],
    title: str = "where the time went",
    *,
    beside: bool = True,
    check: float = 0.0,
) -> Table:
    """The table of where a step's time went; None: not measured. Evaluation and Paceline's own checks, of `check`
    seconds per step, are no part of a step, and stand below the total; without `beside` the total includes
    evaluation."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(title)
    table.add_column("a step", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    total = step["total"] or 1.0
    evaluated = step[EVALUATION] or 0.0
    for part in PHASES:
        took = step[part]
        if took is None:
            table.add_row(part, "not measured", "", "")
        elif part != EVALUATION or (evaluated and not beside):
            table.add_row(part, seconds(took), percent(took / total), bar(took / total * BAR))
    table.add_row("total", seconds(step["total"] or 0.0), "", "", style="bold")
    if beside and evaluated:
        table.add_row("evaluation beside it", seconds(evaluated), percent(evaluated / total), "")
    if check > SHOWN * total:
        table.add_row(f"{CHECK} beside it", seconds(check), percent(check / total), "")
    return table


def bar(width: float) -> str:
    """A bar of this many columns, rounded to an eighth of a column."""
    eighths = round(width * 8)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def plotted(charts: Sequence[Chart], path: Path, script: str) -> Path | None:
    """Draws charts into the record and returns the file. None if there is no chart, or if it cannot be written."""
    from paceline.charts.svg import write_svg

    if not charts:
        return None
    try:
        write_svg(charts, path, title=Path(script).name)
    except OSError as error:
        stop(path, error)
        return None
    return path
