"""The tables of `paceline converge`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from paceline.advise.commands import command
from paceline.record.schema import Run
from paceline.trials.converge.series import ALONE, Row, Sharp, Verdict
from paceline.units import percent, rate, seconds

WIDE = 100  # columns


def show_verdict(console: Console, verdict: Verdict, run: Run, *, quiet: bool) -> None:
    """Prints the table and the conclusion; with `quiet`, only problems. `run`: the series, as recorded."""
    if not quiet:
        console.print()
        console.print(convergence_table(verdict, wide=console.width >= WIDE))
        console.print()
        for line in answer(verdict, run):
            console.print(line, soft_wrap=True)
    for row in verdict.rows:
        if row.trouble:
            console.print(f"{row.technique}: {row.trouble}", style="yellow", soft_wrap=True)
    for trouble, names in _by_trouble(verdict).items():
        console.print(f"sharpness of {', '.join(names)}: {trouble}", style="yellow", soft_wrap=True)
    if verdict.unfinished:
        console.print("The budget ended before all trials were made.", style="yellow")


def _by_trouble(verdict: Verdict) -> dict[str, list[str]]:
    """Techniques whose sharpness could not be measured, grouped by the reason, which is often the same for all."""
    found: dict[str, list[str]] = {}
    for row in verdict.rows:
        if row.sharpness is not None and row.sharpness.trouble:
            found.setdefault(row.sharpness.trouble, []).append(row.technique)
    return found


def convergence_table(verdict: Verdict, *, wide: bool = True) -> Table:
    """One row per technique. The column for time needs a wide terminal; with sharpness, that for speed does, too."""
    sharp = any(row.sharpness for row in verdict.rows)
    speeds = wide or not sharp
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("workers", justify="right", no_wrap=True)
    names = [len(row.technique) for row in verdict.rows]
    table.add_column("technique", min_width=max((length for length in names if length < 20), default=0))
    names_after = ["accuracy", *["samples/s"] * speeds, "to target", *["time"] * wide]
    for name in [*names_after, *["curvature", "moved"] * sharp]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in verdict.rows:
        epochs, time = row.epochs_to_target, row.seconds_to_target
        cells = [str(row.workers), row.technique, accuracy(row)]
        cells += [rate(row.samples_per_s) if row.samples_per_s else "-"] * speeds
        cells += ["-" if epochs is None else f"{epochs:.3g} epoch{'s' * (epochs > 1)}"]
        cells += ["-" if time is None else seconds(time)] * wide
        cells += [curvature(row.sharpness), rise(row.sharpness)] * sharp
        table.add_row(*cells, note(row, verdict))
    return table


def curvature(sharp: Sharp | None) -> str:
    """The largest eigenvalue, marked ≈ if the iteration did not converge."""
    if sharp is None or sharp.eigenvalue is None:
        return "-"
    return f"{'' if sharp.settled else '≈ '}{sharp.eigenvalue:.3g}"


def rise(sharp: Sharp | None) -> str:
    """The rise of the loss under perturbed weights."""
    return "-" if sharp is None or sharp.rise is None else f"{sharp.rise:+.2g}"


def accuracy(row: Row) -> str:
    """`71.2 ± 0.4 %`: the mean, and half the range over seeds."""
    found = row.accuracy
    if found.mean is None or found.low is None or found.high is None:
        return "-"
    if found.seeds < 2:
        return percent(found.mean)
    return f"{found.mean * 100:.1f} ± {(found.high - found.low) * 50:.1f} %"


def _overlap(one: Row, other: Row) -> bool:
    a, b = one.accuracy, other.accuracy
    if a.low is None or a.high is None or b.low is None or b.high is None or min(a.seeds, b.seeds) < 2:
        return False
    return a.low <= b.high and b.low <= a.high


def note(row: Row, verdict: Verdict) -> str:
    said = []
    if row.technique == verdict.chosen:
        said.append("best" if verdict.proven else "highest")
    if row.technique in verdict.tied:
        said.append("tie")
    if row.diverged is not None:
        said.append(f"diverged at step {row.diverged:,}")
    if row.trouble:
        said.append("not measured")
    return ", ".join(said)


def answer(verdict: Verdict, run: Run) -> list[str]:
    """The conclusion from the table, in a few lines."""
    rows = {row.technique: row for row in verdict.rows}
    alone, best = rows.get(ALONE), rows.get(verdict.chosen or next(iter(verdict.tied), ""))
    if best is None or best.accuracy.mean is None:
        return ["No technique gave an accuracy."]
    named = "best" if verdict.proven else "highest"
    lines = [f"{named} of {verdict.workers} workers: {best.technique}, {percent(best.accuracy.mean)}"]
    if verdict.tied:
        lines = [
            f"no best of {verdict.workers} workers: {', '.join(verdict.tied)} overlap over {verdict.seeds} seeds. More "
            f"seeds may tell them apart: --seeds {2 * verdict.seeds}",
            f"highest mean: {best.technique}, {percent(best.accuracy.mean)}",
        ]
    if alone is not None and alone.accuracy.mean is not None:
        apart = (best.accuracy.mean - alone.accuracy.mean) * 100
        lines[-1] += f"; {abs(apart):.1f} points {'above' if apart >= 0 else 'below'} one worker"
        if _overlap(best, alone):
            lines[-1] += ", within the spread over seeds"
    if verdict.seeds == 1:
        lines.append("One seed does not show how much of a difference is chance: --seeds 3")
    if real := best.on_real_workers():
        lines.append(f"On real workers, type: {command(run, verb='run', more=real)}")
    radius = next((row.sharpness.radius for row in verdict.rows if row.sharpness), 0.0)
    if radius:
        lines.append(
            "curvature: the largest eigenvalue of the loss's Hessian. moved: the rise of the loss when each weight "
            f"tensor is perturbed by {radius * 100:.0f} % of its norm."
        )
    if verdict.target is not None:
        lines.append(
            f"target: {percent(verdict.target)}. Times are measured on this machine, not on {verdict.workers} workers."
        )
    return lines
