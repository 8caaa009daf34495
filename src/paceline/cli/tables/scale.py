"""The tables of `paceline scale`: throughput, where the time of a step goes, and the same-numbers check."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from paceline.trials.core.same_numbers import SameNumbers
from paceline.trials.scale import series as trials
from paceline.trials.scale.border import steps_sentence
from paceline.trials.scale.why import CAUSES
from paceline.units import count, percent, rate, seconds


def show_verdict(console: Console, verdict: trials.Verdict) -> None:
    """Prints the tables and the same-numbers line."""
    console.print()
    if verdict.interrupted:
        console.print("interrupted: these are the results of the finished trials", style="yellow")
    if not verdict.points:
        console.print("No number of workers was measured to the end.", style="bold")
        return
    console.print(
        f"{verdict.mode} scaling · {count(verdict.rounds, 'round')} of {count(verdict.steps, 'step')}, "
        f"the first {verdict.warm_up} left out as warm-up",
        style="bold",
    )
    console.print()
    console.print(speed_table(verdict))
    console.print()
    if any(p.why for p in verdict.points):
        console.print("where the time of a step goes", style="bold")
        console.print(why_table(verdict))
        console.print()
    for p in verdict.points:
        if p.why and p.why.sentence:
            console.print(p.why.sentence)
            console.print()
    for sentence in (steps_sentence(verdict.points), verdict.border.sentence if verdict.border else ""):
        if sentence:
            console.print(sentence, style="bold")
            console.print()
    console.print(same_numbers_line(verdict.same_numbers, verdict.base), style="bold")
    if verdict.tie:
        console.print(f"≈: {verdict.tie}.", soft_wrap=True)
    if verdict.base != 1:
        numbers = ",".join(str(p.workers) for p in verdict.points)
        console.print(
            f"no efficiency: speed-up is against {count(verdict.base, 'worker')}. To measure one worker as well: -n 1,"
            f"{numbers}",
            soft_wrap=True,
        )
    if verdict.warning:
        console.print(verdict.warning, style="yellow")
    for failure in verdict.failures:
        console.print(
            f"failed: {count(failure.workers, 'worker')}, round {failure.round}; record: {failure.record}",
            style="red",
            soft_wrap=True,
        )


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")


def speed_table(verdict: trials.Verdict) -> Table:
    """Throughput, speed-up and efficiency, with the spread over rounds."""
    table = _table()
    several = any(p.hosts > 1 for p in verdict.points)
    last = ("hosts", "step") if several else ("view",)  # a table of 80 columns has no room for all of them
    for name in ("workers", "samples/s", "low–high", "speed-up", "low–high", "efficiency", *last):
        table.add_column(name, justify="right", no_wrap=True)
    for p in verdict.points:
        table.add_row(
            str(p.workers),
            rate(p.samples_per_s),
            f"{rate(p.low)}–{rate(p.high)}",
            f"{'≈ ' * p.tied}{p.speedup:.2f}×",
            f"{p.speedup_low:.2f}–{p.speedup_high:.2f}",
            "-" if p.efficiency is None else percent(p.efficiency, digits=0),
            *((str(p.hosts), "-" if p.added is None else percent(p.added, digits=0)) if several else (p.view or "-",)),
        )
    return table


def why_table(verdict: trials.Verdict) -> Table:
    """Where the time of a step goes and, below each number of workers, the efficiency lost to each part."""
    table = _table()
    table.add_column("", no_wrap=True)
    for name in ("a step", *CAUSES):
        table.add_column(name, justify="right", no_wrap=True)
    for p in verdict.points:
        if p.why is None:
            continue
        table.add_row(count(p.workers, "worker"), *(seconds(p.why.seconds[part]) for part in ("total", *CAUSES)))
        if p.workers != verdict.base and p.why.lost and p.efficiency is not None:
            lost = (1 - p.efficiency, *(p.why.lost[cause] for cause in CAUSES))
            table.add_row("  points lost", *(f"{part * 100 + 0.0:.1f}" for part in lost), style="dim")
    return table


def same_numbers_line(same: SameNumbers, base: int) -> str:
    """The result of the same-numbers check: yes, no, or why it was not made."""
    if not same.checked:
        return f"same numbers: not checked: {same.why}."
    found = "beyond comparison" if same.max_difference is None else f"{same.max_difference:.1e}"
    line = f"same numbers: {'yes' if same.same else 'no'} · largest relative loss difference {found}"
    if same.same:
        return f"{line} (limit {same.tolerance:.0e})"
    return (
        f"{line}\n  ({count(same.workers or 0, 'worker')} against {base}, step {same.step}; limit "
        f"{same.tolerance:.0e})."
    )
