"""Draws a sweep: samples a second against batch size, the knee, the memory that each took, and what was not measured:
what does not fit, and what failed otherwise."""

from __future__ import annotations

from pathlib import Path

from paceline.record.private import make_folder, opened
from paceline.trials.core.result import Status
from paceline.trials.sweep.search import Verdict

APART = 1.3  # labels of batches closer than this would overlap


def draw(verdict: Verdict, path: Path, *, title: str) -> None:
    """Writes an SVG of a verdict that has a knee. Imports matplotlib only here: it takes longer than all the rest of
    this process."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    points = [point for point in verdict.points if point.fits]
    too_large = [point.batch for point in verdict.points if point.status is Status.MEMORY]
    unmeasured = [point.batch for point in verdict.points if not point.fits and point.status is not Status.MEMORY]
    batches = [point.batch for point in points]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    memory = axes.twinx()
    memory.plot(batches, [point.memory / 2**30 for point in points], ":", color="0.55", label="peak memory of a worker")
    memory.set_ylabel("GiB", color="0.4")
    memory.set_ylim(bottom=0)
    axes.errorbar(
        batches,
        [p.samples_per_s for p in points],
        yerr=[[p.samples_per_s - p.low for p in points], [p.high - p.samples_per_s for p in points]],
        marker="o",
        capsize=3,
        color="tab:blue",
        label="measured (bars: slowest and fastest block of steps)",
    )
    if verdict.knee is not None:
        axes.axvline(verdict.knee, color="tab:green", linestyle="--", label=f"knee: {verdict.knee:,}")
    for lost, color, words in ((too_large, "tab:red", "does not fit"), (unmeasured, "0.5", "could not be measured")):
        if lost:
            axes.axvspan(min(lost), max(lost) * 1.2, color=color, alpha=0.12, label=f"{words}: {min(lost):,}")
    axes.set_xticks(_apart([*([verdict.knee] if verdict.knee else []), *batches, *too_large[:1], *unmeasured[:1]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel("samples a step")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    workers = f"{verdict.workers} worker{'s' * (verdict.workers > 1)}"
    axes.set_title(f"{title}: throughput against batch size, {workers}", fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    more, more_labels = memory.get_legend_handles_labels()
    axes.legend(handles + more, labels + more_labels, loc="best", fontsize=8, framealpha=0.7)
    axes.grid(alpha=0.25)
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")


def _apart(batches: list[int]) -> list[int]:
    """Those whose labels do not lie on each other, the first ones first."""
    shown: list[int] = []
    for batch in batches:
        if all(max(batch, other) / min(batch, other) >= APART for other in shown):
            shown.append(batch)
    return shown
