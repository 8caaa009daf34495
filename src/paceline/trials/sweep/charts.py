"""Charts of a sweep: throughput and memory by batch size, the knee, and the batches that were not measured."""

from __future__ import annotations

from paceline.charts.chart import Axis, Chart, Line, Mark, Rule, Shade
from paceline.trials.sweep.search import Verdict

APART = 1.3  # smallest ratio of two batches whose labels do not overlap


def charts(verdict: Verdict) -> list[Chart]:
    """Both charts; empty if no batch was measured."""
    points = [point for point in verdict.points if point.fits]
    if not points:
        return []
    too_large = [point.batch for point in verdict.points if point.status == "memory"]
    unmeasured = [point.batch for point in verdict.points if not point.fits and point.status != "memory"]
    batches = [point.batch for point in points]
    marks: list[Mark] = []
    if verdict.knee is not None:
        marks.append(Rule(axis="x", at=verdict.knee, colour="good", dash="dashed", name=f"knee: {verdict.knee:,}"))
    for lost, colour, words in ((too_large, "bad", "does not fit"), (unmeasured, "other", "could not be measured")):
        if lost:
            marks.append(Shade(start=min(lost), end=max(lost) * 1.2, colour=colour, name=f"{words}: {min(lost):,}"))
    ticks = _apart([*([verdict.knee] if verdict.knee else []), *batches, *too_large[:1], *unmeasured[:1]])
    x = Axis(title="samples a step", kind="log", ticks=[(batch, f"{batch:,}") for batch in ticks])
    workers = f"{verdict.workers} worker{'s' * (verdict.workers > 1)}"
    return [
        Chart(
            name="speed",
            title=f"Throughput by batch, {workers}",
            caption="Median over rounds of the trial's median step, after warm-up. Bars: slowest and fastest block of "
            "steps." + (" Dashed: the knee." if verdict.knee is not None else ""),
            x=x,
            y=Axis(title="samples/s", zero=True),
            series=[
                Line(
                    name="samples/s",
                    x=batches,
                    y=[p.samples_per_s for p in points],
                    low=[p.low for p in points],
                    high=[p.high for p in points],
                    colour="accent",
                    markers=True,
                )
            ],
            marks=marks,
        ),
        Chart(
            name="memory",
            title="Memory by batch",
            caption="Peak memory of the worker with the highest peak.",
            x=x,
            y=Axis(title="GiB", zero=True),
            series=[
                Line(
                    name="memory",
                    x=batches,
                    y=[point.memory / 2**30 for point in points],
                    colour="evaluation",
                    markers=True,
                )
            ],
        ),
    ]


def _apart(batches: list[int]) -> list[int]:
    """The batches whose labels do not overlap, chosen in order."""
    shown: list[int] = []
    for batch in batches:
        if batch > 0 and all(max(batch, other) / min(batch, other) >= APART for other in shown):
            shown.append(batch)
    return sorted(shown)
