"""The report of `sweep`: throughput and memory by batch size, the knee, and why the sweep ended."""

from __future__ import annotations

import msgspec

from paceline.advise.commands import command
from paceline.charts.chart import Axis, Chart, Line, Mark, Rule, Shade
from paceline.record.schema import Run
from paceline.reports.report import Column, Command, Figure, Report, Sentence, Table
from paceline.reports.speeds import SPEED
from paceline.trials.core.result import Status
from paceline.trials.sweep.search import Ceiling, Point, Verdict
from paceline.units import count, percent, rate

APART = 1.3  # smallest ratio of two batches whose labels do not overlap
LOST = {Status.MEMORY: "out of memory", Status.UNSUPPORTED: "not possible", Status.TOO_SHORT: "too few steps"}
READ_THE_LOG = "Read the trial's output, log.rank0.txt in its record: {failed}"
ADVICE = {
    Ceiling.MEMORY: "Start with a smaller batch: --from 8",
    Ceiling.TOO_SHORT: "Let the script train longer: more epochs, or more data.",
    Ceiling.UNSUPPORTED: "Make the script's batches with a DataLoader: a sweep can only change those.",
    Ceiling.FAILED: READ_THE_LOG,
    Ceiling.NOT_FINITE: READ_THE_LOG,
    Ceiling.BUDGET: "Give the sweep more time: --budget 5m",
}
LARGEST = "Largest batch size whose trials succeeded. It is the largest that fits if a larger one ran out of memory."


def report(verdict: Verdict, run: Run | None = None) -> Report:
    """`run`: the series, as recorded, for the command of a page."""
    kept = command(run, verb="run", more=["--mod", verdict.keep]) if run and verdict.keep else ""
    no_knee = [] if verdict.knee or verdict.largest is None else [Sentence(knee_line(verdict), "strong")]
    return Report(
        lead=[Sentence("interrupted: these are the results of the finished trials", "warn")] * verdict.interrupted,
        figures=_figures(verdict),
        said=[
            *([Command("Train with the batch size of the knee", kept)] if kept else []),
            *no_knee,
            *([Sentence(verdict.warning, "warn")] if verdict.warning else []),
            *_ceiling(verdict),
            *[Sentence("The budget ended before more rounds could confirm the knee.", "warn")] * verdict.unfinished,
        ],
        charts=charts(verdict),
        tables=[_table(verdict)] if verdict.points else [],
    )


def headline(verdict: Verdict) -> str:
    """The knee, for a list."""
    measured = [point for point in verdict.points if point.fits]
    if len(measured) == 1:
        return "one batch was measured: no knee"
    if verdict.knee is not None:
        return f"knee at batch {verdict.knee:,}"
    if verdict.best is not None:
        return f"best at batch {verdict.best:,}"
    return "no knee: equally fast, within the noise" if verdict.tied else "" if measured else verdict.why


def _figures(verdict: Verdict) -> list[Figure]:
    speeds = {point.batch: point.samples_per_s for point in verdict.points if point.fits}
    named = {
        "knee": (verdict.knee, "Smallest batch size within 5 % of the best throughput."),
        "best": (verdict.best, "Batch size with the highest throughput."),
        "largest that fits" if verdict.ceiling is Ceiling.MEMORY else "largest tried": (verdict.largest, LARGEST),
        "the script's own": (verdict.own, "Batch size that the script sets."),
    }
    return [
        Figure(
            label,
            f"{batch:,}",
            how,
            f"{rate(speeds[batch])} samples/s" if batch in speeds else "",
            "good" if label == "knee" else "",
            large=label in ("knee", "best"),
            said=knee_line(verdict) if label == "knee" else "",
        )
        for label, (batch, how) in named.items()
        if batch is not None
    ]


def knee_line(verdict: Verdict) -> str:
    """The knee, compared with the best batch and with the script's own; or why none is named."""
    points = {point.batch: point for point in verdict.points if point.fits}
    speeds = {batch: point.samples_per_s for batch, point in points.items()}
    ends = f"{min(verdict.tied):,} to {max(verdict.tied):,}" if verdict.tied else ""
    tie = f"{ends} samples a step are equally fast, within the spread of the measurements"
    if len(points) == 1:
        return "no knee: only one batch was measured."
    if verdict.knee is None:
        line = f"no knee: {tie if verdict.tied else 'the smallest batch is the fastest'}."
        smaller = not verdict.tied or min(speeds) in verdict.tied
        return line + "\nA smaller batch may be as fast: try --from." * smaller
    line = f"knee: {count(verdict.knee, 'sample')} a step"
    if verdict.best is not None and verdict.knee != verdict.best:
        line += f", {percent(speeds[verdict.knee] / speeds[verdict.best], digits=0)} of the best ({verdict.best:,})"
    if verdict.own is not None and verdict.knee != verdict.own and points[verdict.knee].low > points[verdict.own].high:
        line += f", {speeds[verdict.knee] / speeds[verdict.own]:.2f}× the script's own ({verdict.own:,})"
    if verdict.tied:
        line += f"\nno best: {tie}."
    if verdict.keep:
        line += f"\nTo use this batch, with a matching learning rate, add: --mod {verdict.keep}"
    return line


def _ceiling(verdict: Verdict) -> list[Sentence]:
    """Why the sweep ended."""
    lost = [point.batch for point in verdict.points if point.fits is False]
    if verdict.ceiling is Ceiling.MEMORY and verdict.largest is not None and lost:
        return [Sentence(f"ceiling: {verdict.largest:,} fits, {min(lost):,} does not: {verdict.why}")]
    more = "To find the largest batch that fits, add: --to-the-end" if verdict.ceiling is Ceiling.FLAT else ""
    stopped = f"The sweep stopped: {verdict.why.rstrip('.')}." if verdict.ceiling else verdict.why
    return [Sentence(stopped, advice=more)] if verdict.why else []


def _table(verdict: Verdict) -> Table:
    fastest = max((point.samples_per_s for point in verdict.points), default=0.0)
    signs = {"own": verdict.own, "knee": verdict.knee, "best": verdict.best}

    def row(point: Point) -> dict[str, object]:
        if not point.fits:
            why = LOST.get(point.status, str(point.status))
            return {"batch": point.batch, "fits": point.fits, "message": point.message, "sign": why}
        found = [name for name, batch in signs.items() if batch == point.batch]
        sign = ", ".join([*found, *["tie"] * (point.batch in verdict.tied)])
        shares = {"of_best": point.samples_per_s / fastest, "seconds": point.batch / point.samples_per_s}
        return {**msgspec.to_builtins(point), **shares, "sign": sign}

    return Table(
        name="points",
        title="Batches",
        columns=(
            Column("batch", "batch", "Samples per step, over all workers.", "count"),
            Column("fits", "fits", "Whether the batch fits into memory; empty: not known.", "flag", on="page"),
            SPEED,
            Column("of_best", "of best", "samples/s divided by the highest.", "percent"),
            Column("seconds", "a step", "Samples per step divided by samples/s.", "seconds"),
            Column("memory", "memory", "Peak memory of the worker that used most.", "bytes"),
            Column("rounds", "rounds", "Number of trials of this batch size.", "count", on="page"),
            Column("sign", "", on="terminal"),
            Column("message", "why not", "Why there is no measurement.", on="page"),
        ),
        rows=[row(point) for point in verdict.points],
    )


def complaint(verdict: Verdict) -> str:
    """What went wrong, in one line."""
    if verdict.largest is not None:
        what = "the sweep ended early"
    else:
        cannot_change = verdict.ceiling is Ceiling.UNSUPPORTED
        what = "the script's batch cannot be changed" if cannot_change else "nothing was measured"
    return f"{what}: {verdict.why}"


def advice(verdict: Verdict) -> str:
    """What to type."""
    return ADVICE.get(verdict.ceiling, "Type the command again.").format(failed=verdict.failed)


def charts(verdict: Verdict) -> list[Chart]:
    """Both charts; empty if no batch was measured."""
    points = [point for point in verdict.points if point.fits]
    if not points:
        return []
    too_large = [point.batch for point in verdict.points if point.status == "memory"]
    unmeasured = [point.batch for point in verdict.points if not point.fits and point.status != "memory"]
    batches = [point.batch for point in points]
    marks: list[Mark] = []
    if verdict.knee is not None:
        marks.append(Rule(axis="x", at=verdict.knee, colour="good", dash="dashed", name=f"knee: {verdict.knee:,}"))
    for lost, colour, words in ((too_large, "bad", "does not fit"), (unmeasured, "other", "could not be measured")):
        if lost:
            marks.append(Shade(start=min(lost), end=max(lost) * 1.2, colour=colour, name=f"{words}: {min(lost):,}"))
    ticks = _apart([*([verdict.knee] if verdict.knee else []), *batches, *too_large[:1], *unmeasured[:1]])
    x = Axis(title="samples a step", kind="log", ticks=[(batch, f"{batch:,}") for batch in ticks])
    workers = f"{verdict.workers} worker{'s' * (verdict.workers > 1)}"
    return [
        Chart(
            name="speed",
            title=f"Throughput by batch, {workers}",
            caption="Median over rounds of the trial's median step, after warm-up. Bars: slowest and fastest block of "
            "steps." + (" Dashed: the knee." if verdict.knee is not None else ""),
            x=x,
            y=Axis(title="samples/s", zero=True),
            series=[
                Line(
                    name="samples/s",
                    x=batches,
                    y=[p.samples_per_s for p in points],
                    low=[p.low for p in points],
                    high=[p.high for p in points],
                    colour="accent",
                    markers=True,
                )
            ],
            marks=marks,
        ),
        Chart(
            name="memory",
            title="Memory by batch",
            caption="Peak memory of the worker with the highest peak.",
            x=x,
            y=Axis(title="GiB", zero=True),
            series=[
                Line(
                    name="memory",
                    x=batches,
                    y=[point.memory / 2**30 for point in points],
                    colour="evaluation",
                    markers=True,
                )
            ],
        ),
    ]


def _apart(batches: list[int]) -> list[int]:
    """The batches whose labels do not overlap, chosen in order."""
    shown: list[int] = []
    for batch in batches:
        if batch > 0 and all(max(batch, other) / min(batch, other) >= APART for other in shown):
            shown.append(batch)
    return sorted(shown)
