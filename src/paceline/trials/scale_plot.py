"""Draws a scaling verdict: samples a second against workers, with the spread and the perfect line."""

from __future__ import annotations

from pathlib import Path

from paceline.trials.scale import Verdict


def draw(verdict: Verdict, path: Path, *, title: str) -> None:
    """Writes an SVG. Imports matplotlib only here: it takes longer than all the rest of this process."""
    from matplotlib.figure import Figure

    points = verdict.points
    workers = [p.workers for p in points]
    speeds = [p.samples_per_s for p in points]
    per_worker = speeds[0] / workers[0]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
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
    axes.set_title(f"{title}: {verdict.mode} scaling", fontsize=11)
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg")
