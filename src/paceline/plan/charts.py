"""Charts of a plan: efficiency and step time by workers for each strategy, the parts of a step, and the knee."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.charts.chart import DASHES, Axis, Bars, Chart, Line, Rule
from paceline.plan.search import Knee
from paceline.plan.step import CAUSES, Predicted

COLOURS = {
    "compute": "forward",
    "communication": "communication",
    "bubble": "optimizer",
    "straggle": "evaluation",
    "input": "data",
}
LINES = ("accent", "forward", "backward", "communication", "optimizer", "data", "evaluation", "other")
PREDICTED = "Predicted, not measured."


def charts(rows: Sequence[Predicted], others: Sequence[Predicted], found: Knee | None) -> list[Chart]:
    """`rows`: the table; `others`: all strategies at the same numbers of workers."""
    if not rows:
        return []
    workers = [one.workers for one in rows]
    axis = Axis(title="workers", kind="log", ticks=[(n, f"{n:,}") for n in workers])
    return [
        _by_strategy("efficiency", "Efficiency", [*others], axis, Axis(title="efficiency", share=True, zero=True)),
        _by_strategy("seconds", "Step time", [*others], axis, Axis(title="step", time=True, kind="log")),
        Chart(
            name="parts",
            title="The parts of a step",
            caption="Each bar is one step, from bottom to top: compute, communication that no backward hides, the "
            f"pipeline's bubble, waiting for the slowest worker, input. {PREDICTED}",
            x=Axis(title="workers", kind="category"),
            y=Axis(title="step", time=True, zero=True),
            series=[
                Bars(
                    name=cause,
                    x=[f"{n:,}" for n in workers],
                    y=[one.parts[cause] for one in rows],
                    colour=COLOURS[cause],
                )
                for cause in CAUSES
                if any(one.parts[cause] for one in rows)
            ],
            stacked=True,
        ),
        *([_knee(found)] if found else []),
    ]


def _by_strategy(what: str, title: str, everything: Sequence[Predicted], x: Axis, y: Axis) -> Chart:
    """A line for each strategy: with any number of workers for one copy of the model. The first has its interval."""
    by_name: dict[str, list[Predicted]] = {}
    for one in everything:
        by_name.setdefault(one.strategy.partition(" ")[0], []).append(one)
    return Chart(
        name=what,
        title=f"{title} by workers",
        caption=f"Error bars: the interval of the first strategy. {PREDICTED}",
        x=x,
        y=y,
        series=[
            Line(
                name=name,
                x=[one.workers for one in some],
                y=[getattr(one, what) for one in some],
                low=[getattr(one, what) * _ends(one, what)[0] for one in some] if not n else (),
                high=[getattr(one, what) * _ends(one, what)[1] for one in some] if not n else (),
                colour=LINES[n % len(LINES)],
                dash=DASHES[n % len(DASHES)],
                markers=True,
            )
            for n, (name, some) in enumerate(by_name.items())
        ],
    )


def _ends(one: Predicted, what: str) -> tuple[float, float]:
    low, high = one.low / one.samples_per_s, one.high / one.samples_per_s
    return (low, high) if what == "efficiency" else (1 / high, 1 / low)


def _knee(found: Knee) -> Chart:
    return Chart(
        name="knee",
        title=f"Time to accuracy by batch, {found.workers:,} workers",
        caption="Throughput × statistical efficiency, from the gradient noise scale. Dotted: the knee, beyond which a "
        f"larger batch gains less than 5 %. {PREDICTED}",
        x=Axis(
            title="batch",
            kind="log",
            ticks=[(b, f"{b:,.0f}") for b in found.batches[:: max(1, len(found.batches) // 5)]],
        ),
        y=Axis(title="relative time" if found.relative else "time", zero=True, time=not found.relative),
        series=[Line(name="time", x=found.batches, y=found.seconds, colour="accent", markers=True)],
        marks=[Rule(axis="x", at=found.knee, name="knee")],
    )
