"""The tables of `paceline plan`: predictions by workers, the best setups, the check, and the presets."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paceline.plan.check import Check
from paceline.plan.cluster import EXAMPLE, PRESETS, Cluster
from paceline.plan.plan import Plan
from paceline.plan.step import CAUSES, Predicted
from paceline.units import count, percent, rate, seconds, size


def _table(*names: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    return table


def show_plan(console: Console, made: Plan) -> None:
    """Prints a plan."""
    console.print()
    console.print(
        f"{made.script} on {made.cluster}: {count(made.hosts, 'host')} of {count(made.slots, 'worker')} · "
        f"{made.mode} scaling, batch {made.batch:,} · gradients {size(made.gradients)} · compute measured on "
        f"{made.measured_on}" + (f", × {made.speed:g}" if made.speed != 1 else ""),
        style="bold",
        soft_wrap=True,
    )
    how = (
        f"worst error of {count(made.checked, 'known run')}, at least the usual one" if made.checked else "usual error"
    )
    console.print(f"predicted, not measured; interval ±{percent(made.error, digits=0)} and the spread of steps ({how})")
    console.print()
    console.print(_speeds(made.rows))
    console.print()
    console.print("where the time of a step goes", style="bold")
    console.print(_parts(made.rows))
    console.print()
    for one in made.rows:
        if one.seconds_to_accuracy:
            cost = f", which costs {rate(one.cost_to_accuracy)}" if one.cost_to_accuracy else ""
            took = seconds(one.seconds_to_accuracy)
            console.print(f"{count(one.workers, 'worker')}: {took} to the accuracy{cost}", soft_wrap=True)
    _limits(console, [(count(one.workers, "worker"), one) for one in made.rows if one.workers > 1])
    if made.found is not None:
        console.print()
        console.print(f"best for {made.found.goal}, of {count(made.found.tried, 'setup')}", style="bold")
        if not made.found.fits:
            console.print("None fits into the memory of a worker; these come closest.", style="yellow")
        if not made.found.best:
            console.print("None reaches the accuracy within --budget, as far as that is known.", style="yellow")
        else:
            console.print(_best(made.found.best))
            console.print()
            _limits(console, [(str(number), one) for number, one in enumerate(made.found.best, 1)])
    if made.knee is not None:
        k = made.knee
        console.print()
        console.print(
            f"knee: on {count(k.workers, 'worker')}, batches above {k.knee:,.0f} save less than 5 % of the time",
            soft_wrap=True,
        )
    console.print()
    for each in made.unknown:
        console.print(f"not known: {each}.", style="yellow", soft_wrap=True)


def _speeds(rows: Sequence[Predicted]) -> Table:
    table = _table("workers", "samples/s", "low–high", "efficiency", "step", "algorithm", "memory")
    for one in rows:
        table.add_row(
            f"{one.workers:,}",
            rate(one.samples_per_s),
            f"{rate(one.low)}–{rate(one.high)}",
            percent(one.efficiency, digits=0),
            seconds(one.seconds),
            one.algorithm,
            _memory(one),
        )
    return table


def _memory(one: Predicted) -> str:
    if one.memory is None:
        return "-"
    return size(one.memory) + (" too much" if one.fits is False else "")


def _parts(rows: Sequence[Predicted]) -> Table:
    table = _table("workers", *CAUSES)
    for one in rows:
        table.add_row(f"{one.workers:,}", *(seconds(one.parts[cause]) for cause in CAUSES))
    return table


def _best(best: Sequence[Predicted]) -> Table:
    names = ["", "workers", "strategy", "batch", "algorithm", "bucket", "samples/s", "efficiency"]
    timed = any(one.relative_time for one in best)
    if timed:
        names[6] = "time" if any(one.seconds_to_accuracy for one in best) else "time, relative"
    if any(one.cost_to_accuracy for one in best):
        names[7] = "cost"
    table = _table(*names)
    for number, one in enumerate(best, 1):
        speed = seconds(one.seconds_to_accuracy) if one.seconds_to_accuracy else f"{one.relative_time or 0:.2f}"
        table.add_row(
            str(number),
            f"{one.workers:,}",
            one.strategy,
            f"{one.batch:,.0f}",
            one.algorithm,
            size(one.bucket),
            speed if timed else rate(one.samples_per_s),
            rate(one.cost_to_accuracy) if one.cost_to_accuracy else percent(one.efficiency, digits=0),
        )
    return table


def _limits(console: Console, named: Sequence[tuple[str, Predicted]]) -> None:
    """What limits each, and what helps; a line for those that are alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, one in named:
        alike.setdefault((one.bottleneck, one.remedy), []).append(name)
    for (bottleneck, remedy), names in alike.items():
        console.print(f"{', '.join(names)}: limited by {bottleneck}. What helps: {remedy}.", soft_wrap=True)


def show_check(console: Console, found: Check, cluster: Cluster) -> None:
    """Prints predicted against measured."""
    console.print(f"predicted on {cluster.name}, from the other runs of the same series", style="bold")
    if found.runs:
        table = _table("run", "script", "workers", "batch", "predicted", "measured", "error", left=["run", "script"])
        for run in found.runs:
            row = (run.record, run.script, f"{run.workers:,}", f"{run.batch:,}", seconds(run.predicted))
            table.add_row(*row, seconds(run.measured), f"{run.off * 100:+.0f} %")
        console.print(table)
        console.print(
            f"error: median {percent(found.median, digits=0)}, worst {percent(found.worst, digits=0)} "
            f"({count(len(found.runs), 'run')})",
            style="bold",
        )
    else:
        console.print("No run could be predicted. A series is needed: paceline plan --measure train.py", style="yellow")
    for why, number in found.left_out.items():
        console.print(f"left out: {count(number, 'run')}: {why}", style="dim")


def show_clusters(console: Console) -> None:
    """Prints the presets, and how to describe a cluster."""
    table = _table("name", "host", "workers", "NICs", "memory", left=["host"])
    for name, one in PRESETS.items():
        table.add_row(
            name,
            one.name,
            str(one.slots),
            f"{one.nics} × {one.gbit_per_s:g} Gbit/s",
            size(one.memory) if one.memory else "-",
        )
    console.print(table)
    console.print()
    console.print("dgx1x4 is four hosts; dgx1x4@25 has one NIC of 25 Gbit/s in each, dgx1x4@2x100 two of 100 Gbit/s.")
    console.print("Rates of links are usual ones, not measured; --bandwidth takes measured ones.")
    console.print()
    console.print(f"A cluster of one's own is a JSON file: {EXAMPLE}", soft_wrap=True)
    console.print(
        "host: a preset, a file of paceline topo --json, or its content. Other keys: "
        + ", ".join(name for name in Cluster.__struct_fields__ if name not in ("host", "name")),
        soft_wrap=True,
    )
