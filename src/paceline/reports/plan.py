"""The reports of `plan`: predictions by workers, the best setups, the check, and the presets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.charts.chart import DASHES, Axis, Bars, Chart, Line, Rule
from paceline.plan.check import Check
from paceline.plan.cluster import EXAMPLE, PRESETS, Cluster
from paceline.plan.plan import Plan
from paceline.plan.search import Found, Knee
from paceline.plan.step import CAUSES, Predicted
from paceline.reports.report import Column, Report, Sentence, Table, Words
from paceline.units import count, percent, rate, seconds, size

COLOURS = {
    "compute": "forward",
    "communication": "communication",
    "bubble": "optimizer",
    "straggle": "evaluation",
    "input": "data",
}
LINES = ("accent", "forward", "backward", "communication", "optimizer", "data", "evaluation", "other")
PREDICTED = "Predicted, not measured."
PARTS = "where the time of a step goes"


def report(made: Plan) -> Report:
    faster = f", × {made.speed:g}" if made.speed != 1 else ""
    what = (
        f"{made.script} on {made.cluster}: {count(made.hosts, 'host')} of {count(made.slots, 'worker')} · {made.mode} "
        f"scaling, batch {made.batch:,} · gradients {size(made.gradients)} · compute measured on {made.measured_on}"
    )
    runs = (
        f"worst error of {count(made.checked, 'known run')}, at least the usual one" if made.checked else "usual error"
    )
    how = f"predicted, not measured; interval ±{percent(made.error, digits=0)} and the spread of steps ({runs})"
    said: list[Sentence | Words] = [
        Sentence(
            f"{count(one.workers, 'worker')}: {seconds(one.seconds_to_accuracy)} to the accuracy"
            + (f", which costs {rate(one.cost_to_accuracy)}" if one.cost_to_accuracy else "")
        )
        for one in made.rows
        if one.seconds_to_accuracy
    ]
    said += _limits("What limits it", {count(one.workers, "worker"): one for one in made.rows if one.workers > 1})
    if made.found is not None:
        said += [Sentence("None fits into the memory of a worker; these come closest.", "warn")] * (not made.found.fits)
        none = Sentence("None reaches the accuracy within --budget, as far as that is known.", "warn")
        said += [none] * (not made.found.best)
        said += _limits("What limits the best", {str(n): one for n, one in enumerate(made.found.best, 1)})
    if (k := made.knee) is not None:
        said.append(
            Sentence(
                f"knee: on {count(k.workers, 'worker')}, batches above {k.knee:,.0f} save less than 5 % of the time"
            )
        )
    return Report(
        lead=[Sentence(what + faster, "strong"), Sentence(how)],
        said=said,
        charts=charts(made.rows, made.others, made.knee),
        tables=[_table(made), *([_best(made.found)] if made.found is not None and made.found.best else [])],
        after=[Sentence(f"Not known: {each}.") for each in made.unknown],
    )


def headline(made: Plan) -> str:
    """The efficiency on the most workers, for a list."""
    if not made.rows:
        return ""
    last = made.rows[-1]
    return f"{percent(last.efficiency, digits=0)} efficiency predicted on {last.workers:,} workers of {made.cluster}"


def _limits(title: str, named: dict[str, Predicted]) -> list[Words]:
    """What limits each, and what helps; a line for those that are alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, one in named.items():
        alike.setdefault((one.bottleneck, one.remedy), []).append(name)
    lines = [f"{', '.join(n)}: limited by {why}. What helps: {remedy}." for (why, remedy), n in alike.items()]
    return [Words(title, lines, "The largest part of the step beside compute.")] if lines else []


def _memory(one: Predicted) -> str:
    return "–" if one.memory is None else size(one.memory) + (" too much" if one.fits is False else "")


def _table(made: Plan) -> Table:
    ends = (
        Column("low", "low", "The lower end of the interval.", "rate"),
        Column("high", "high", "The upper end of the interval.", "rate"),
    )
    return Table(
        name="points",
        title=f"{made.cluster}, {made.mode} scaling",
        about=f"Predicted, not measured. The interval is ±{percent(made.error, digits=0)} and the spread of the steps.",
        columns=(
            Column("workers", "workers", "Number of workers.", "count"),
            Column("samples_per_s", "samples/s", "Predicted samples per second.", "rate", ends=ends),
            Column("efficiency", "efficiency", "Compared with as many single workers.", "percent"),
            Column("seconds", "a step", "Predicted time of a step.", "seconds"),
            Column("algorithm", "algorithm", "Of the all-reduce."),
            Column("memory", "memory", "Predicted memory of a worker.", "bytes", text="needs"),
            *(Column(cause, cause, f"Part of the step: {cause}.", "seconds", part=PARTS) for cause in CAUSES),
            Column("bottleneck", "limited by", "The largest part beside compute.", spare=True),
            Column("remedy", "what helps", "What would make that part smaller.", spare=True),
        ),
        rows=[msgspec.to_builtins(one) | one.parts | {"needs": _memory(one)} for one in made.rows],
    )


def _best(found: Found) -> Table:
    title = f"best for {found.goal}, of {count(found.tried, 'setup')}"
    timed, known = any(one.relative_time for one in found.best), any(one.seconds_to_accuracy for one in found.best)
    rows: list[dict[str, Any]] = [
        msgspec.to_builtins(one)
        | {"number": number, "title": title, "time": one.seconds_to_accuracy or one.relative_time}
        for number, one in enumerate(found.best, 1)
    ]
    costs = any(one.cost_to_accuracy for one in found.best)
    time = Column("time", "time", "Predicted time to the accuracy.", "seconds")
    relative = Column("time", "time, relative", "To the accuracy: only ratios are known.", "number")
    return Table(
        name="best",
        title=title[:1].upper() + title[1:],
        columns=(
            Column("number", "", "Rank.", "count"),
            Column("workers", "workers", "Number of workers.", "count"),
            Column("strategy", "strategy", "As --strategy takes it."),
            Column("batch", "batch", "Samples per step, over all workers.", "count"),
            Column("algorithm", "algorithm", "Of the all-reduce."),
            Column("bucket", "bucket", "Size of a gradient bucket.", "bytes"),
            (time if known else relative)
            if timed
            else Column("samples_per_s", "samples/s", "Predicted samples per second.", "rate"),
            Column("cost_to_accuracy", "cost", "Predicted cost of the accuracy.", "rate")
            if costs
            else Column("efficiency", "efficiency", "Compared with as many single workers.", "percent"),
        ),
        rows=rows,
        by="title",
    )


def check_report(found: Check, cluster: Cluster) -> Report:
    """Predicted against measured."""
    columns = (
        Column("record", "run", wrap=True),
        Column("script", "script", wrap=True),
        Column("workers", "workers", kind="count"),
        Column("batch", "batch", kind="count"),
        Column("predicted", "predicted", kind="seconds"),
        Column("measured", "measured", kind="seconds"),
        Column("off", "error", kind="change"),
    )
    rows = [msgspec.to_builtins(run) | {"off": run.off} for run in found.runs]
    errors = f"error: median {percent(found.median, digits=0)}, worst {percent(found.worst, digits=0)}"
    none = "No run could be predicted. A series is needed: paceline plan --measure train.py"
    told = Sentence(f"{errors} ({count(len(rows), 'run')})", "strong") if rows else Sentence(none, "warn")
    return Report(
        lead=[Sentence(f"predicted on {cluster.name}, from the other runs of the same series", "strong")],
        said=[told, *(Sentence(f"left out: {count(n, 'run')}: {why}") for why, n in found.left_out.items())],
        tables=[Table(name="check", title="Check", columns=columns, rows=rows)],
    )


def clusters_report() -> Report:
    """The presets, and how to describe a cluster."""
    columns = (
        Column("preset", "name"),
        Column("name", "host", wrap=True),
        Column("slots", "workers", kind="count"),
        Column("nics", "NICs"),
        Column("memory", "memory", kind="bytes"),
    )
    rows = [
        {"preset": name, "name": one.name, "slots": one.slots, "memory": one.memory or None}
        | {"nics": f"{one.nics} × {one.gbit_per_s:g} Gbit/s"}
        for name, one in PRESETS.items()
    ]
    others = ", ".join(name for name in Cluster.__struct_fields__ if name not in ("host", "name"))
    said = (
        "dgx1x4 is four hosts; dgx1x4@25 has one NIC of 25 Gbit/s in each, dgx1x4@2x100 two of 100 Gbit/s.",
        "Rates of links are usual ones, not measured; --bandwidth takes measured ones.\n",
        f"A cluster of one's own is a JSON file: {EXAMPLE}",
        f"host: a preset, a file of paceline topo --json, or its content. Other keys: {others}",
    )
    return Report(
        said=[Sentence(text) for text in said],
        tables=[Table(name="clusters", title="Clusters", columns=columns, rows=rows)],
    )


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
