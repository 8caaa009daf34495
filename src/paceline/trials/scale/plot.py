"""Draws a scaling verdict: samples a second against workers, with the spread and the perfect line; and beside it what
the efficiency is lost to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.record.private import make_folder, opened
from paceline.trials.scale.series import Verdict
from paceline.trials.scale.why import CAUSES

COLOURS = {"compute": "tab:orange", "communication": "tab:red", "imbalance": "tab:purple", "input": "tab:green"}


def draw(verdict: Verdict, path: Path, *, title: str) -> None:
    """Writes an SVG. Imports matplotlib only here: it takes longer than all the rest of this process."""
    from matplotlib.figure import Figure

    explained = any(p.why for p in verdict.points)
    figure = Figure(figsize=(9.6 if explained else 6.4, 4.2), layout="constrained")
    if explained:
        speed, why = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_why(why, verdict)
    else:
        speed = figure.subplots()
    _draw_speed(speed, verdict)
    speed.set_title(f"{title}: {verdict.mode} scaling", fontsize=11)
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")


def _draw_speed(axes: Any, verdict: Verdict) -> None:
    points = verdict.points
    workers = [p.workers for p in points]
    speeds = [p.samples_per_s for p in points]
    per_worker = speeds[0] / workers[0]
    axes.plot(workers, [per_worker * n for n in workers], "--", color="0.6", label="perfect scaling")
    axes.errorbar(
        workers,
        speeds,
        yerr=[[p.samples_per_s - p.low for p in points], [p.high - p.samples_per_s for p in points]],
        marker="o",
        capsize=4,
        color="tab:blue",
        label="measured (median; bars: slowest and fastest round)",
    )
    for point in points:
        axes.annotate(
            f"{point.speedup:.2f}× · {point.efficiency:.0%}",
            (point.workers, point.samples_per_s),
            textcoords="offset points",
            # Inside the frame: to the right of a point, but to the left of the last one.
            xytext=(-8, 8) if point is points[-1] and len(points) > 1 else (8, -14),
            ha="right" if point is points[-1] and len(points) > 1 else "left",
            fontsize=9,
        )
    axes.set_xticks(workers)
    axes.set_xlabel("workers")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.12)
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.grid(alpha=0.25)


def _draw_why(axes: Any, verdict: Verdict) -> None:
    """A bar for each number of workers: its efficiency, and on top of it what was lost to each cause. Where something
    was gained, the bar is higher than 100 % by that."""
    points = [p for p in verdict.points if p.why]
    names = [str(p.workers) for p in points]
    bottom = [p.efficiency * 100 for p in points]
    axes.bar(names, bottom, color="tab:blue", width=0.6, label="efficiency")
    for cause in CAUSES:
        lost = [max(0.0, p.why.lost[cause]) * 100 for p in points if p.why]
        axes.bar(names, lost, bottom=bottom, color=COLOURS[cause], width=0.6, label=f"lost to {cause}")
        bottom = [below + part for below, part in zip(bottom, lost, strict=True)]
    axes.axhline(100, color="0.6", linestyle="--", linewidth=1)
    axes.set_ylim(0, max(100.0, *bottom) * 1.32)  # room for the legend
    axes.set_xlabel("workers")
    axes.set_ylabel("% of a step's time")
    axes.set_title("where the efficiency goes", fontsize=11)
    axes.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)
