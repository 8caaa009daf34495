"""The tables of `paceline sweep`: throughput by batch, the knee, and why the sweep ended."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from paceline.trials.core.result import Status
from paceline.trials.sweep.search import Ceiling, Verdict
from paceline.units import count, percent, rate, seconds, size

LOST = {
    Status.MEMORY: "out of memory",
    Status.UNSUPPORTED: "not possible",
    Status.TOO_SHORT: "too few steps",
}
READ_THE_LOG = "Read the trial's output, log.rank0.txt in its record: {failed}"
ADVICE = {
    Ceiling.MEMORY: "Start with a smaller batch: --from 8",
    Ceiling.TOO_SHORT: "Let the script train longer: more epochs, or more data.",
    Ceiling.UNSUPPORTED: "Make the script's batches with a DataLoader: a sweep can only change those.",
    Ceiling.FAILED: READ_THE_LOG,
    Ceiling.NOT_FINITE: READ_THE_LOG,
    Ceiling.BUDGET: "Give the sweep more time: --budget 5m",
}


def show_verdict(console: Console, verdict: Verdict, *, quiet: bool) -> None:
    """Prints the table, the knee, and why the sweep ended."""
    if verdict.interrupted:
        console.print("interrupted: these are the results of the finished trials", style="yellow")
    if quiet or verdict.largest is None:
        return
    console.print()
    console.print(batch_table(verdict))
    console.print()
    console.print(knee_line(verdict), style="bold", soft_wrap=True)
    console.print(ceiling_line(verdict), soft_wrap=True)
    if verdict.warning:
        console.print(verdict.warning, style="yellow", soft_wrap=True)
    if verdict.unfinished:
        console.print("The budget ended before more rounds could confirm the knee.", style="yellow")


def batch_table(verdict: Verdict) -> Table:
    """The throughput and the memory of each batch."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in ("batch", "samples/s", "low–high", "of best", "a step", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    best = max(point.samples_per_s for point in verdict.points)
    for p in verdict.points:
        if not p.fits:
            table.add_row(f"{p.batch:,}", "-", "-", "-", "-", "-", LOST.get(p.status, p.status))
            continue
        signs: dict[str, list[int | None]] = {
            "own": [verdict.own],
            "knee": [verdict.knee],
            "best": [verdict.best],
            "tie": [*verdict.tied],
        }
        table.add_row(
            f"{p.batch:,}",
            rate(p.samples_per_s),
            f"{rate(p.low)}–{rate(p.high)}",
            percent(p.samples_per_s / best, digits=0),
            seconds(p.batch / p.samples_per_s),
            size(p.memory),
            ", ".join(name for name, batches in signs.items() if p.batch in batches),
        )
    return table


def knee_line(verdict: Verdict) -> str:
    """The knee, compared with the best batch and with the script's own; or why none is named."""
    points = {point.batch: point for point in verdict.points if point.fits}
    speeds = {batch: point.samples_per_s for batch, point in points.items()}
    tie = f"{_listed(verdict.tied)} samples a step are equally fast, within the spread of the measurements"
    if len(points) == 1:
        return "no knee: only one batch was measured."
    if verdict.knee is None:
        line = f"no knee: {tie if verdict.tied else 'the smallest batch is the fastest'}."
        if not verdict.tied or min(speeds) in verdict.tied:
            line += "\nA smaller batch may be as fast: try --from."
        return line
    line = f"knee: {count(verdict.knee, 'sample')} a step"
    if verdict.best is not None and verdict.knee != verdict.best:
        line += f", {percent(speeds[verdict.knee] / speeds[verdict.best], digits=0)} of the best ({verdict.best:,})"
    if verdict.own is not None and verdict.knee != verdict.own:
        gain = speeds[verdict.knee] / speeds[verdict.own]
        clear = points[verdict.knee].low > points[verdict.own].high
        line += f", {gain:.2f}× the script's own ({verdict.own:,})" if clear else ""
    if verdict.tied:
        line += f"\nno best: {tie}."
    if verdict.keep:
        line += f"\nTo use this batch, with a matching learning rate, add: --mod {verdict.keep}"
    return line


def _listed(batches: list[int]) -> str:
    return f"{min(batches):,} to {max(batches):,}" if batches else ""


def ceiling_line(verdict: Verdict) -> str:
    """Why the sweep ended."""
    if verdict.ceiling is Ceiling.MEMORY:
        lost = min(point.batch for point in verdict.points if point.fits is False)
        return f"ceiling: {verdict.largest:,} fits, {lost:,} does not: {verdict.why}"
    if verdict.ceiling is Ceiling.FLAT:
        return f"ended: {verdict.why}. To find the largest batch that fits, add: --to-the-end"
    return f"ended: {verdict.why}." if verdict.why else "ended: interrupted."


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
