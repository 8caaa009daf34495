"""Curves of several runs in one chart: loss, throughput, step time, and the numbers that the scripts logged; of series,
the curve of each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, product

import msgspec
import polars as pl

from paceline.charts.chart import Axis, Chart, Dash, Line
from paceline.charts.thin import thinned
from paceline.errors import RecordError
from paceline.record.logged import Logged, read_logged
from paceline.trials.converge import charts as converge_charts
from paceline.trials.converge.series import Verdict as ConvergeVerdict
from paceline.trials.scale import charts as scale_charts
from paceline.trials.scale.series import Verdict as ScaleVerdict
from paceline.trials.sweep import charts as sweep_charts
from paceline.trials.sweep.search import Verdict as SweepVerdict
from paceline.view.records.contents import is_series
from paceline.view.records.record import Opened
from paceline.view.ui.verdicts import as_verdict

COLOURS = ("accent", "communication", "optimizer", "evaluation", "data", "forward", "bad", "other")
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted")
OVER = {"step": "step", "samples": "samples seen", "seconds": "seconds since the first step"}
MOST_NAMES = 12  # of logged numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run with the letter that stands for it in tables and charts."""

    letter: str
    record: Opened
    colour: str
    dash: Dash

    @property
    def first(self) -> pl.DataFrame:
        """The steps of the first rank, with what can be an x axis."""
        steps = self.record.steps.frame
        first = steps.filter(pl.col("rank") == pl.col("rank").min())
        seen, passed = pl.col("samples").cum_sum(), pl.col("at") - pl.col("at").first()
        return first.with_columns(seen.alias("seen"), passed.alias("passed"))


def lettered(records: Sequence[Opened]) -> list[Compared]:
    """A, B, C …, then AA, AB …; colours in turn, then the same colours dashed."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    letters = [*alphabet, *("".join(pair) for pair in product(alphabet, repeat=2))]
    styles = islice(cycle((colour, dash) for dash in DASHES for colour in COLOURS), len(records))
    return [
        Compared(letter=letter, record=record, colour=colour, dash=dash)
        for letter, record, (colour, dash) in zip(letters, records, styles, strict=False)
    ]


def overlaid(runs: Sequence[Compared], over: str) -> list[Chart]:
    """The charts in which at least one run has a curve. `over` is a key of OVER."""
    x_of = {"step": "step", "samples": "seen", "seconds": "passed"}[over]
    made = []
    for key, title, unit, how in (
        ("loss", "Loss", "loss", "As the script computed it, for the whole batch."),
        ("speed", "Throughput", "samples/s", "Rank 0: samples of the whole batch divided by the step time."),
        ("total", "Step time", "seconds", "Rank 0, wall time."),
    ):
        lines, usual = [], 0.0
        for run in runs:
            steps = run.first.with_columns((pl.col("samples") / pl.col("total")).alias("speed"))
            steps = steps.filter(pl.col(key).is_not_null() & pl.col(key).is_finite())
            if steps.height:
                lines.append(_line(run, steps[x_of].to_list(), steps[key].to_list()))
                middle = steps[key].median()
                usual = max(usual, float(middle) if isinstance(middle, int | float) else 0.0)
        if lines:
            # The first step takes many times as long as the others.
            limits = (0, 3 * usual) if key == "total" and usual else None
            y = Axis(title=unit, limits=limits, zero=key == "speed")
            made.append(Chart(name=key, title=title, caption=how, x=Axis(title=OVER[over]), y=y, series=lines))
    return [*made, *_logged(runs, over)]


def overlaid_results(runs: Sequence[Compared]) -> list[Chart]:
    """For each verb that several of the series are of: the main curve of each series."""
    made = []
    for verb in dict.fromkeys(run.record.run.verb for run in runs if is_series(run.record)):
        drawn = [(run, _result(run.record)) for run in runs if run.record.run.verb == verb and is_series(run.record)]
        known = [(run, found[0], found[1]) for run, found in drawn if found is not None]
        if len(known) < 2:
            continue
        lines = [
            replace(line, name=run.letter, colour=run.colour, dash=run.dash, width=1.5, markers=True)
            for run, _, line in known
        ]
        chart = known[0][1]
        ticks = sorted({tick for _, each, _ in known for tick in each.x.ticks})
        title = f"{chart.title.partition(',')[0]}: {verb}"
        made.append(
            replace(chart, name=f"of-{verb}", title=title, series=lines, marks=[], x=replace(chart.x, ticks=ticks))
        )
    return made


def _result(record: Opened) -> tuple[Chart, Line] | None:
    """The main chart of a series and its main line; None if there is none, or if the verdict is damaged."""
    try:
        match record.run.verb:
            case "scale":
                found = scale_charts.charts(as_verdict(record, ScaleVerdict))
            case "sweep":
                found = sweep_charts.charts(as_verdict(record, SweepVerdict))
            case "converge":
                found = converge_charts.accuracy(as_verdict(record, ConvergeVerdict))
            case _:
                return None
    except RecordError:
        return None  # the record's own page says so
    lines = [each for each in found[0].series if isinstance(each, Line)] if found else []
    # Of a scale, the line that is not the perfect one; of a converge, the thick line of the chosen technique.
    main = max(lines, key=lambda line: (line.width, line.dash == "solid"), default=None)
    return (found[0], main) if main is not None else None


def _line(run: Compared, x: Sequence[float], y: Sequence[float | None]) -> Line:
    return thinned(Line(name=run.letter, x=x, y=y, colour=run.colour, dash=run.dash, markers=len(x) < 20))


def _logged(runs: Sequence[Compared], over: str) -> list[Chart]:
    told: dict[str, list[Line]] = {}
    for run in runs:
        try:
            logged = read_logged(run.record.folder)
        except (RecordError, OSError, msgspec.DecodeError):
            continue  # the run's own page names the damaged file
        place = _places(run, over)
        for name in dict.fromkeys(name for each in logged for name in each.numbers):
            known = [(place(each), each.numbers[name]) for each in logged if name in each.numbers]
            told.setdefault(name, []).append(_line(run, [x for x, _ in known], [y for _, y in known]))
    return [
        Chart(
            name=f"logged-{name}",
            title=name,
            caption="As the scripts gave it to paceline.log, on rank 0.",
            x=Axis(title=OVER[over]),
            y=Axis(title=name),
            series=lines,
        )
        for name, lines in list(told.items())[:MOST_NAMES]
    ]


def _places(run: Compared, over: str) -> Callable[[Logged], float]:
    if over == "step":
        return lambda each: float(each.step)
    first = run.first
    if over == "seconds":
        begun = float(first["at"][0]) if first.height else 0.0
        return lambda each: each.at - begun
    seen = dict(zip(first["step"], first["seen"], strict=True))
    return lambda each: float(seen.get(each.step, 0))
