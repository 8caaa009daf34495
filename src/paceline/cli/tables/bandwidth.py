"""The tables of `paceline bandwidth`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from paceline.topology.links import in_words
from paceline.trials.bandwidth.charts import ENDS
from paceline.trials.bandwidth.verdict import CollectiveRate, CopyRate, Matrix, PairRate, Verdict, matrices, unsteady
from paceline.units import count, percent, seconds, size

FEW = 6  # largest number of pairs shown as a list; more are shown as a matrix
ABREAST = 3  # implementations of a collective shown side by side


def show(console: Console, verdict: Verdict) -> None:
    """Prints all measurements, weak links and notes."""
    if verdict.interrupted:
        console.print("interrupted: these are the measurements made before", style="yellow")
    if verdict.copies:
        names = Counter({copy.gpu: copy.name for copy in verdict.copies}.values())
        told = ", ".join(name if many == 1 else f"{many} × {name}" for name, many in names.items())
        _section(console, f"host ↔ device and device memory, GB/s · {told}", copy_table(verdict.copies))
    for between, backend in dict.fromkeys((pair.between, pair.backend) for pair in verdict.pairs):
        found = [pair for pair in verdict.pairs if (pair.between, pair.backend) == (between, backend)]
        title = f"{ENDS[between]}, {_way(backend)}"
        if len(found) <= FEW:
            _section(console, f"pairs of {title}, GB/s", pair_table(found, verdict.hosts))
            continue
        numbers, one_way, both_ways, latencies = matrices(found)
        ends = [verdict.hosts[number] if between == "hosts" else str(number) for number in numbers]
        _section(console, f"{title}: GB/s one way", matrix_table(ends, one_way, gb))
        _section(console, f"{title}: GB/s both ways", matrix_table(ends, both_ways, gb))
        _section(console, f"{title}: latency", matrix_table(ends, latencies, seconds))
    for op in dict.fromkeys(each.op for each in verdict.collectives):
        found_of_op = [each for each in verdict.collectives if each.op == op]
        title = f"{op}, {count(verdict.workers, 'worker')}: time and busbw in GB/s"
        for part in _side_by_side(found_of_op):
            _section(console, title, op_table(part))
    if verdict.copy_limits:
        limit = max(verdict.copy_limits, key=lambda each: each.bytes)
        console.print(
            f"\nCopying {size(limit.bytes)} on all workers at once: {gb(limit.gb_per_s)} GB/s together. "
            "“of copy” is\nthe fastest rate in a row, divided by the copy rate at that size."
        )
    for flag in verdict.flags:
        console.print(
            f"\n! {flag.what}: {gb(flag.gb_per_s)} GB/s, {percent(flag.share, digits=0)} of the usual "
            f"{gb(flag.usual)} GB/s.\n→ look at {flag.look_at}",
            style="yellow",
            soft_wrap=True,
        )
    for note in verdict.notes:
        console.print(f"\n{note}", style="yellow", soft_wrap=True)
    if warning := unsteady(verdict):
        console.print(f"\n{warning}", style="yellow")


def _section(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(title, style="bold")
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def copy_table(copies: list[CopyRate]) -> Table:
    """Copies to, from and within each GPU."""
    table = _table("GPU", "path", "memory", "GB/s", "low–high", "usual", "latency")
    for column in (1, 2):
        table.columns[column].justify = "left"
    for copy in copies:
        table.add_row(
            str(copy.gpu),
            copy.path,
            "" if copy.pinned is None else "pinned" if copy.pinned else "pageable",
            gb(copy.gb_per_s),
            f"{gb(copy.low)}–{gb(copy.high)}",
            gb(copy.usual) if copy.usual else "-",
            seconds(copy.latency),
        )
    return table


def pair_table(pairs: list[PairRate], hosts: Sequence[str] = ()) -> Table:
    """Rates between two workers, two GPUs, or two hosts with these names."""
    linked = any(pair.kind for pair in pairs)
    one_sided = pairs[0].between != "gpus"
    table = _table("pair", "one way", "low–high", "both ways", "latency", *(("usual", "joined by") if linked else ()))
    if linked:
        table.columns[-1].justify = "left"
    for pair in pairs:
        kind = f"{in_words(pair.kind)} ({pair.kind})" if pair.kind else "-"
        table.add_row(
            f"{hosts[pair.a]}–{hosts[pair.b]}"
            if pair.between == "hosts"
            else f"{pair.a}–{pair.b}"
            if one_sided
            else f"{pair.a}→{pair.b}",
            gb(pair.gb_per_s),
            f"{gb(pair.low)}–{gb(pair.high)}",
            gb(pair.both_ways_gb_per_s),
            seconds(pair.latency),
            *((gb(pair.usual) if pair.usual else "-", kind) if linked else ()),
        )
    return table


def matrix_table(names: list[str], cells: Matrix, told: Callable[[float], str]) -> Table:
    """Rates from each end (the row) to each other end (the column)."""
    table = _table("", *names)
    for name, line in zip(names, cells, strict=True):
        table.add_row(name, *("X" if math.isnan(cell) else told(cell) for cell in line))
    return table


def _side_by_side(found: list[CollectiveRate]) -> list[list[CollectiveRate]]:
    """Groups the implementations of a collective, as many per group as fit side by side."""
    ways = list(dict.fromkeys((each.backend, each.algorithm) for each in found))
    groups = [ways[at : at + ABREAST] for at in range(0, len(ways), ABREAST)]
    return [[each for each in found if (each.backend, each.algorithm) in group] for group in groups]


def op_table(found: list[CollectiveRate]) -> Table:
    """One collective: one row per message size, two columns per implementation."""
    ways = list(dict.fromkeys((each.backend, each.algorithm) for each in found))
    cells = {(each.bytes, each.backend, each.algorithm): each for each in found}
    table = _table("size")
    for way in ways:
        table.add_column(way_name(*way), justify="right", no_wrap=True)
        table.add_column("GB/s", justify="right", no_wrap=True)
    table.add_column("of copy", justify="right", no_wrap=True)
    for bytes_ in sorted({each.bytes for each in found}):
        row = [cells.get((bytes_, *way)) for way in ways]
        table.add_row(
            size(bytes_),
            *(text for each in row for text in ((seconds(each.seconds), gb(each.busbw)) if each else ("-", "-"))),
            percent(max(each.share for each in row if each), digits=0),
        )
    return table


def way_name(backend: str, algorithm: str) -> str:
    """`memory in place`, `gloo`, `ring`."""
    if algorithm in ("copied", "its own"):
        return backend
    return algorithm.replace("_", "-") if backend == "network" else f"{backend} {algorithm}"


def _way(backend: str) -> str:
    return {"memory": "through shared memory", "gloo": "over Gloo"}.get(backend, backend)


def gb(value: float) -> str:
    """A rate in GB/s with at most three digits."""
    for least, digits in ((100, 0), (10, 1), (0.1, 2)):
        if value >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.1g}"
