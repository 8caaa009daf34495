"""Charts of a scaling verdict: throughput by workers, and where the efficiency goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paceline.charts.chart import Axis, Bars, Chart, Label, Line, Rule
from paceline.trials.scale.series import Point, Verdict
from paceline.trials.scale.why import CAUSES
from paceline.units import percent

# Of the phases that they are made of.
COLOURS = {"compute": "forward", "communication": "communication", "imbalance": "evaluation", "input": "data"}


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
