"""The report of `scale`: throughput by number of workers, the causes of lost efficiency, and the same-numbers check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paceline.advise.commands import command
from paceline.charts.chart import Axis, Bars, Chart, Label, Line, Rule
from paceline.record.schema import Run
from paceline.reports.report import Column, Command, Figure, Report, Sentence, Table, Words
from paceline.reports.speeds import SPEED
from paceline.reports.wording import say
from paceline.trials.core.same_numbers import SameNumbers
from paceline.trials.scale.border import steps_sentence
from paceline.trials.scale.series import Point, Verdict
from paceline.trials.scale.why import CAUSES
from paceline.units import count, percent

GOOD = 0.85  # efficiency from which on more workers pay
LOST = "Efficiency lost to this cause, compared with the fewest workers; a negative value is a gain."
PARTS = "where the time of a step goes"
# Of the phases that they are made of.
COLOURS = {"compute": "forward", "communication": "communication", "imbalance": "evaluation", "input": "data"}


def report(verdict: Verdict, run: Run | None = None) -> Report:
    """`run`: the series, as recorded, for the commands of a page."""
    failures = [
        Sentence.of_failure(f"{count(each.workers, 'worker')}, round {each.round}: {each.message}")
        for each in verdict.failures[:20]
    ]
    stopped = [Sentence("interrupted: these are the results of the finished trials", "warn")] * verdict.interrupted
    if not verdict.points:
        nothing = [Sentence("No number of workers was measured to the end.", "strong")]
        return Report(lead=stopped, said=nothing, after=failures)
    measured = (
        f"{verdict.mode} scaling · {count(verdict.rounds, 'round')} of {count(verdict.steps, 'step')}, the first "
        f"{verdict.warm_up} left out as warm-up"
    )
    return Report(
        lead=[*stopped, Sentence(measured, "strong")],
        figures=_figures(verdict, verdict.points[-1]),
        said=[*_next(verdict.points[-1], run), *_said(verdict)],
        charts=charts(verdict),
        tables=[_table(verdict)],
        after=failures,
    )


def headline(verdict: Verdict) -> str:
    """The speed-up of the most workers, for a list."""
    if len(verdict.points) < 2:
        return ""
    last = verdict.points[-1]
    if last.tied:
        return f"{count(last.workers, 'worker')}: no difference measured"
    shared = f", {percent(last.efficiency, digits=0)} efficiency" if last.efficiency is not None else ""
    return f"{last.speedup:.3g}× on {count(last.workers, 'worker')}{shared}"


def _figures(verdict: Verdict, largest: Point) -> list[Figure]:
    how = "samples/s divided by samples/s with the fewest workers."
    ends = f"{say(largest.speedup_low, 'times')} to {say(largest.speedup_high, 'times')}"
    detail, tie = f"{ends}; {verdict.tie}" if largest.tied else ends, f"≈: {verdict.tie}." if verdict.tie else ""
    name = f"speed-up at {largest.workers}"
    figures = [Figure(name, say(largest.speedup, "times"), how, detail, large=True, said=tie)]
    if largest.efficiency is not None:
        tone: Literal["", "good", "warn"] = "" if largest.tied else "good" if largest.efficiency > GOOD else "warn"
        how = "Speed-up per worker; 100 % is perfect scaling."
        figures.append(Figure("efficiency", percent(largest.efficiency, digits=0), how, tone=tone, large=True))
    how = "strong: the global batch is fixed; weak: it grows with the workers."
    same = verdict.same_numbers
    return [
        *figures,
        Figure("scaling", verdict.mode, how),
        Figure(
            "same numbers",
            "yes" if same.checked and same.same else "no" if same.checked else "not checked",
            "Losses of every step, compared with the losses of the fewest workers.",
            same.why or f"largest difference {say(same.max_difference, 'number')}",
            "good" if same.checked and same.same else "warn",
            said=same_numbers_line(same, verdict.base),
        ),
    ]


def same_numbers_line(same: SameNumbers, base: int) -> str:
    """The result of the same-numbers check: yes, no, or why it was not made."""
    if not same.checked:
        return f"same numbers: not checked: {same.why}."
    found = "beyond comparison" if same.max_difference is None else f"{same.max_difference:.1e}"
    line = f"same numbers: {'yes' if same.same else 'no'} · largest relative loss difference {found}"
    if same.same:
        return f"{line} (limit {same.tolerance:.0e})"
    where = f"{count(same.workers or 0, 'worker')} against {base}, step {same.step}"
    return f"{line}\n  ({where}; limit {same.tolerance:.0e})."


def _next(largest: Point, run: Run | None) -> list[Command]:
    if largest.efficiency is None or run is None:
        return []
    more = ["-n", str(largest.workers)]
    if largest.tied or largest.efficiency <= GOOD:
        return [Command("See where the time of a step goes", command(run, verb="profile", more=more))]
    return [Command("Train so", command(run, verb="run", more=more))]


def _said(verdict: Verdict) -> list[Sentence | Words]:
    said: list[Sentence | Words] = []
    if why := [point.why.sentence for point in reversed(verdict.points) if point.why and point.why.sentence]:
        said.append(Words("Why not more?", why, "From the phases of each trial's steps."))
    border = [steps_sentence(verdict.points), verdict.border.sentence if verdict.border else ""]
    said += [Sentence(sentence, "strong") for sentence in border if sentence]
    if verdict.points[-1].efficiency is None:
        numbers = ",".join(str(point.workers) for point in verdict.points)
        against = f"Speed-up is against {count(verdict.base, 'worker')}."
        text = f"No efficiency: one worker was not measured. {against}"
        said.append(Sentence(text, advice=f"Measure one worker as well: -n 1,{numbers}"))
    return [*said, *([Sentence(verdict.warning, "warn")] if verdict.warning else [])]


def _table(verdict: Verdict) -> Table:
    rows: list[dict[str, Any]] = []
    for point in verdict.points:
        row = msgspec.to_builtins(point) | {"shown": f"{'≈ ' * point.tied}{point.speedup:.2f}×"}
        if why := point.why:
            row |= why.seconds | {f"lost_{cause}": why.lost.get(cause) for cause in CAUSES}
            if point.workers != verdict.base and why.lost and point.efficiency is not None:
                lost = {"total": 1 - point.efficiency, **why.lost}
                row |= {f"{name}_under": f"{part * 100 + 0.0:.1f}" for name, part in lost.items()}
                row["under"] = "points lost"
        rows.append(row)
    times, per_worker = "samples/s divided by the first row's.", "Speed-up per worker."
    added = "Speed added by the workers that the row before lacks, divided by what they would add at best."
    several = any(point.hosts > 1 for point in verdict.points)
    ends = [Column(f"speedup_{end}", end, "Its interval.", "times", spare=True) for end in ("low", "high")]
    return Table(
        name="points",
        title="Points",
        columns=(
            Column("workers", "workers", "Number of workers in the trial.", "count", under="under"),
            SPEED,
            Column("speedup", "speed-up", times, "times", text="shown", ends=ends),
            Column("efficiency", "efficiency", per_worker, "percent", bar=True),
            # A terminal of 80 columns has no room for all of them.
            *([] if several else [Column("view", "view", "What the script sees of the batch.", on="terminal")]),
            *([Column("hosts", "hosts", "Number of hosts of these workers.", "count")] if several else []),
            *([Column("added", "step", added, "percent")] if several else []),
            Column("total", "a step", "Mean time of a step.", "seconds", under="total_under", part=PARTS),
            *(
                Column(cause, cause, f"Mean time in a step. {LOST}", "seconds", under=f"{cause}_under", part=PARTS)
                for cause in CAUSES
            ),
            *(Column(f"lost_{cause}", f"lost: {cause}", LOST, "share", spare=True) for cause in CAUSES),
        ),
        rows=rows,
    )


def charts(verdict: Verdict) -> list[Chart]:
    """Both charts; empty if nothing was measured."""
    if not verdict.points:
        return []
    return [
        _throughput(verdict),
        *([_efficiency(verdict)] if any(p.why and p.why.lost for p in verdict.points) else []),
    ]


def _throughput(verdict: Verdict) -> Chart:
    points = verdict.points
    workers = [p.workers for p in points]
    per_worker = points[0].samples_per_s / max(1, workers[0])
    return Chart(
        name="speed",
        title=f"Throughput, {verdict.mode} scaling",
        caption="Median over rounds of the trial's median step, after warm-up. Bars: slowest and fastest round. "
        "At each point: speed-up and efficiency. Dashed: perfect scaling.",
        x=Axis(title="workers", ticks=[(n, str(n)) for n in workers]),
        y=Axis(title="samples/s", zero=True),
        series=[
            Line(name="perfect scaling", x=workers, y=[per_worker * n for n in workers], colour="other", dash="dashed"),
            Line(
                name="measured",
                x=workers,
                y=[p.samples_per_s for p in points],
                low=[p.low for p in points],
                high=[p.high for p in points],
                colour="accent",
                markers=True,
            ),
        ],
        marks=[
            Label(
                x=p.workers,
                y=p.samples_per_s,
                text=f"{p.speedup:.2f}×" + ("" if p.efficiency is None else f" · {percent(p.efficiency, digits=0)}"),
                side=_side(points, n),
            )
            for n, p in enumerate(points)
        ],
    )


def _side(points: Sequence[Point], n: int) -> Literal["below right", "above right", "above left", "below left"]:
    """Inside the frame, and beside the line."""
    if n == len(points) - 1 and n:
        return "above left" if points[n].samples_per_s >= points[n - 1].samples_per_s else "below left"
    rises = n == len(points) - 1 or points[n + 1].samples_per_s >= points[n].samples_per_s
    return "below right" if rises else "above right"


def _efficiency(verdict: Verdict) -> Chart:
    points = [(str(p.workers), p.efficiency or 0.0, p.why.lost) for p in verdict.points if p.why]
    workers = [name for name, _, _ in points]
    lost = [
        Bars(
            name=f"lost to {cause}",
            x=workers,
            y=[max(0.0, each.get(cause, 0.0)) for _, _, each in points],
            colour=COLOURS[cause],
        )
        for cause in CAUSES
        if any(each.get(cause, 0.0) > 0 for _, _, each in points)
    ]
    return Chart(
        name="lost",
        title="Where the efficiency goes",
        caption="Efficiency, and above it the efficiency lost to each part of a step, compared with perfect scaling of "
        "the base. A bar exceeds 100 % if other parts of the step gained time.",
        x=Axis(title="workers", kind="category"),
        y=Axis(title="of a step's time", zero=True, share=True),
        series=[
            Bars(name="efficiency", x=workers, y=[each for _, each, _ in points], colour="optimizer"),
            *lost,
        ],
        marks=[Rule(axis="y", at=1.0)],
        stacked=True,
    )
