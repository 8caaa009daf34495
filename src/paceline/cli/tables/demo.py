"""The tables of `paceline demo`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from paceline.trials.demo.printed import Printed
from paceline.trials.tune.verdict import Verdict
from paceline.units import count, rate


def show_printed(console: Console, printed: Printed, workers: int) -> None:
    """Prints both outputs side by side, and whether their numbers are the same."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold cyan")
    for heading in ("plain python", count(workers, "worker")):
        table.add_column(heading)
    for line in printed.lines:
        style = "" if line.same else "red"
        table.add_row("(nothing)" if line.plain is None else line.plain, line.workers or "(nothing)", style=style)
    console.print(table)
    if printed.same:
        console.print(
            f"same numbers: yes ({count(printed.numbers, 'number')} compared, largest relative difference "
            f"{printed.max_difference:.1g})",
            style="bold green",
            soft_wrap=True,
        )
        return
    first = printed.first_difference
    console.print("same numbers: no", style="bold red")
    if first is None:
        console.print("The script printed no numbers to compare.")
    else:
        line = printed.lines[first - 1]
        console.print(
            f"The first difference is in line {first}:\n  plain:   {line.plain}\n  workers: {line.workers}",
            soft_wrap=True,
        )


def show_tuned(console: Console, verdict: Verdict, command: str | None) -> None:
    """Prints the speed before and after tuning, and the command that keeps the mods."""
    final, baseline = verdict.final, verdict.baseline
    if final is None or baseline is None:
        return
    if not final.mods:
        console.print(
            f"as is: {rate(baseline.samples_per_s)} samples/s; {verdict.conclusion.sentence}",
            style="bold",
            soft_wrap=True,
        )
        return
    console.print(
        f"as is: {rate(final.samples_per_s / final.gain)} samples/s → tuned: {rate(final.samples_per_s)} samples/s "
        f"({final.gain:.2f}×, {final.gain_low:.2f}–{final.gain_high:.2f} in {count(final.pairs, 'pair')}): "
        f"{', '.join(final.mods)}",
        style="bold green",
        soft_wrap=True,
    )
    console.print(f"keep it: {command}", style="bold", soft_wrap=True)
