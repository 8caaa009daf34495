"""Curves of several runs in one chart: loss, throughput, step time, and the numbers that the scripts logged; of series,
the curve of each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, product

import msgspec
import polars as pl

from paceline.charts.chart import DASHES, Axis, Chart, Dash, Line, Mark, Rule
from paceline.charts.thin import thinned
from paceline.errors import RecordError
from paceline.record.logged import Logged, read_logged
from paceline.reports.verdicts import VERBS
from paceline.units import count
from paceline.view.records.contents import is_series
from paceline.view.records.record import Opened

COLOURS = tuple(f"series{number}" for number in range(1, 9))  # no colour of a phase
SPIKE = 3.0  # times the range of all but the highest 2 % of losses: a higher one is left out of the axis
FEW = 50  # points: of fewer, none is left out
OVER = {"step": "step", "samples": "samples seen", "seconds": "seconds since the first step"}
MOST_NAMES = 12  # of logged numbers
MOST_BROKEN = 100  # steps of a run whose loss was not finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run with the letter that stands for it in tables and charts; no letter, if it is the only one."""

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
    """A, B, C …, then AA, AB …; colours and dashes in turn."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    letters = [*alphabet, *("".join(pair) for pair in product(alphabet, repeat=2))]
    return [
        Compared(letter=letter, record=record, colour=colour, dash=dash)
        for letter, record, colour, dash in zip(letters, records, cycle(COLOURS), cycle(DASHES), strict=False)
    ]


def overlaid(runs: Sequence[Compared], over: str) -> list[Chart]:
    """The charts in which at least one run has a curve. `over` is a key of OVER."""
    x_of = {"step": "step", "samples": "seen", "seconds": "passed"}[over]
    made = []
    for key, title, unit, how in (
        ("loss", "Loss", "loss", "As the script computed it, for the whole batch."),
        ("speed", "Throughput", "samples/s", "Rank 0: samples of the whole batch divided by the step time."),
        ("total", "Step time", "step time", "Rank 0, wall time."),
    ):
        lines, usual, known = [], 0.0, pl.Series(dtype=pl.Float64)
        for run in runs:
            steps = run.first.with_columns(
                pl.when(pl.col("samples") > 0).then(pl.col("samples") / pl.col("total")).alias("speed")
            )
            steps = steps.filter(pl.col(key).is_not_null() & pl.col(key).is_finite())
            if steps.height:
                lines.append(_line(run, steps[x_of].to_list(), steps[key].to_list(), unit))
                middle = steps[key].median()
                usual = max(usual, float(middle) if isinstance(middle, int | float) else 0.0)
                known = known.append(steps[key].cast(pl.Float64))
        if lines:
            # The first step takes many times as long as the others.
            limits, beyond = (
                ((0.0, 3 * usual), 0) if key == "total" and usual else robust(known) if key == "loss" else (None, 0)
            )
            y = Axis(title=unit, limits=limits, zero=key == "speed", time=key == "total")
            if beyond:
                how = f"{how} {count(beyond, 'value')} above the axis: a logarithmic axis shows all."
            marks = _not_finite(runs, x_of) if key == "loss" else []
            x = Axis(title=OVER[over])
            made.append(Chart(name=key, title=title, caption=how, x=x, y=y, series=lines, marks=marks))
    return [*made, *_logged(runs, over)]


def robust(values: pl.Series) -> tuple[tuple[float, float] | None, int]:
    """Limits of an axis that a few spikes do not squeeze, and the number of values above them; None without spikes."""
    if len(values) < FEW:
        return None, 0
    low, high, most = (float(values.quantile(q) or 0.0) for q in (0.0, 0.98, 1.0))
    if most - low <= SPIKE * (high - low) or high == low:
        return None, 0
    room = 0.05 * (high - low)
    limits = (low - room, high + 5 * room)
    return limits, int((values > limits[1]).sum())


def _not_finite(runs: Sequence[Compared], x_of: str) -> list[Mark]:
    """Where the loss of a run was not a finite number."""
    return [
        Rule(axis="x", at=float(at), colour="bad", name="loss is not finite" if number == 0 else "")
        for run in runs
        for number, at in enumerate(run.first.filter(~pl.col("finite"))[x_of].head(MOST_BROKEN))
    ]


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
    of_verb = VERBS[record.run.verb]
    try:
        found = of_verb.charts(of_verb.read(record.verdict))
    except (msgspec.ValidationError, RecursionError):
        return None  # the record's own page says so
    lines = [each for each in found[0].series if isinstance(each, Line)] if found else []
    # Of a scale, the line that is not the perfect one; of a converge, the thick line of the chosen technique.
    main = max(lines, key=lambda line: (line.width, line.dash == "solid"), default=None)
    return (found[0], main) if main is not None else None


def _line(run: Compared, x: Sequence[float], y: Sequence[float | None], unit: str) -> Line:
    return thinned(Line(name=run.letter or unit, x=x, y=y, colour=run.colour, dash=run.dash, markers=len(x) == 1))


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
            told.setdefault(name, []).append(_line(run, [x for x, _ in known], [y for _, y in known], name))
    return [
        Chart(
            name=f"logged-{name}",
            title=name,
            caption="As the script gave it to paceline.log, on rank 0.",
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
