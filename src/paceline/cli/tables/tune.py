"""The tables of `paceline tune`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paceline.trials.tune.candidates import INEXACT, INEXACT_ACROSS, MORE, name_of, summary_of
from paceline.trials.tune.patch import Patch
from paceline.trials.tune.verdict import Problem, Reason, Row, Verdict
from paceline.units import count, percent, rate

MOST_LINES = 60  # lines of a patch that are shown; the record has the whole patch
ADVICE = {
    Problem.BUDGET: "Allow more time: --budget 15m. Or give the script less data: trials need only the first steps.",
    Problem.NO_STEP: "Name the script that trains, with its arguments: paceline tune {script} --epochs 1",
    Problem.TOO_SHORT: "Give the script more to do: more epochs, more data, or a smaller batch.",
    Problem.LOSS: "Fix the script: find the step where its loss breaks, with --steps and a smaller learning rate.",
    Problem.FAILED: "Check that the script runs: paceline run {script}",
}


def advice(verdict: Verdict, script: str) -> str:
    """What the user can do about the verdict's problem."""
    return ADVICE[verdict.problem_code or Problem.FAILED].format(script=script)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Prints the table of mods and the notes."""
    console.print()
    if verdict.interrupted:
        console.print("interrupted: these results are not confirmed yet", style="yellow")
    if verdict.baseline is None:
        return
    console.print(
        f"{count(verdict.trials, 'trial')} · as is: {rate(verdict.baseline.samples_per_s)} samples/s, "
        f"batch {verdict.baseline.batch:,}, noise of a trial {percent(verdict.noise)}",
        style="bold",
        soft_wrap=True,
    )
    if any(row.gain is not None or row.code is not Reason.NOT_TRIED for row in verdict.mods):
        console.print()
        console.print(table(verdict.mods))
    console.print()
    if verdict.guard is not None and verdict.guard.steps:
        console.print(
            f"losses: compared over {count(verdict.guard.steps, 'step')}; another seed changes them by "
            f"{percent(verdict.guard.seeds)}",
            soft_wrap=True,
        )
    for note in verdict.notes:
        console.print(f"note: {note}.", style="yellow", soft_wrap=True)
    if verdict.cut_short:
        console.print("The budget ended before all mods were tried. To try more: --budget 15m", style="yellow")


def show_final(console: Console, verdict: Verdict) -> None:
    """Prints the total gain of the kept mods."""
    final = verdict.final
    if final is None or verdict.baseline is None:
        return
    if not final.mods:
        console.print(verdict.conclusion.sentence, style="bold", soft_wrap=True)
        return
    shown = f"{final.gain_low:.2f}–{final.gain_high:.2f} in {count(final.pairs, 'pair')} of fresh processes"
    if not final.pairs:
        shown = "in one fresh process, compared with earlier trials"
    console.print(
        f"{final.gain:.2f}× as fast ({shown}): {rate(final.samples_per_s)} samples/s",
        style="bold green",
        soft_wrap=True,
    )
    for mod in final.mods:
        if name_of(mod) == MORE:
            console.print(
                f"{mod} changes the mathematics: fewer, larger steps, and a learning rate that grows with the batch\n"
                "  (SGD: linearly; Adam: with the square root). Check that the accuracy stays.",
                style="yellow",
                soft_wrap=True,
            )
        elif mod in (*INEXACT, *INEXACT_ACROSS):
            console.print(
                f"{mod} gives up the same numbers: {summary_of(name_of(mod))}",
                style="yellow",
                soft_wrap=True,
            )


def table(rows: Sequence[Row]) -> Table:
    """One row per mod."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    made.add_column("mod", no_wrap=True)
    for heading in ("before", "after", "gain", "loss diff."):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("kept, or why not")
    for row in rows:
        made.add_row(
            row.mod,
            "" if row.before is None else rate(row.before),
            "" if row.after is None else rate(row.after),
            "" if row.gain is None else f"{row.gain:.2f}×",
            "" if row.loss_difference is None else f"{100 * row.loss_difference:.2f} %",
            f"kept{f': {row.reason}' if row.reason else ''}" if row.kept else row.reason,
            style="bold" if row.kept else "",
        )
    return made


def show_patch(console: Console, patch: Patch, path: str) -> None:
    """Prints the code that has the same effect as the mods: the patch, then the lines to add by hand."""
    if patch.diff:
        lines = patch.diff.splitlines()
        console.print()
        console.print(f"Or change the script: {', '.join(patch.mods)}", style="bold", soft_wrap=True)
        for line in lines[:MOST_LINES]:
            colour = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
            console.print(line, style=colour, soft_wrap=True)
        if len(lines) > MOST_LINES:
            console.print(f"… {len(lines) - MOST_LINES} more lines, in {path}", soft_wrap=True)
    for one in patch.by_hand:
        console.print()
        console.print(f"By hand: {one.mod}", style="bold")
        for line in one.lines.splitlines():
            console.print(f"    {line}", soft_wrap=True)
