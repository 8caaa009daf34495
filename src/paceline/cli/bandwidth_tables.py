"""The tables of `paceline bandwidth`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from paceline.cli.terminal import count, percent, seconds
from paceline.topology.links import in_words
from paceline.trials.bandwidth_verdict import CollectiveRate, CopyRate, PairRate, Verdict, spread

UNSTEADY = 0.5  # rounds further apart than this say more of the machine than of the backends


def show(console: Console, verdict: Verdict) -> None:
    """Everything that was measured, and what is wrong with it."""
    if verdict.interrupted:
        console.print("interrupted: what follows had been measured until then", style="yellow")
    if verdict.copies:
        _section(console, "GPU memory and host ↔ device, GB/s", copy_table(verdict.copies))
    for between, backend in dict.fromkeys((pair.between, pair.backend) for pair in verdict.pairs):
        found = [pair for pair in verdict.pairs if (pair.between, pair.backend) == (between, backend)]
        who = "GPUs" if between == "gpus" else "workers"
        _section(console, f"pairs of {who}: {_way(backend)}", pair_table(found))
    for op in dict.fromkeys(each.op for each in verdict.collectives):
        found_of_op = [each for each in verdict.collectives if each.op == op]
        _section(console, f"{op}, {count(verdict.workers, 'worker')}: time and busbw in GB/s", op_table(found_of_op))
    if verdict.copy_limits:
        limit = max(verdict.copy_limits, key=lambda each: each.bytes)
        console.print(
            f"\nAll workers copying {size(limit.bytes)} each at the same time: {gb(limit.gb_per_s)} GB/s together. "
            "The last\ncolumn is the share of that rate which the best way reaches."
        )
    for flag in verdict.flags:
        console.print(
            f"\n! {flag.what}: {gb(flag.gb_per_s)} GB/s, {percent(flag.share, digits=0)} of the {gb(flag.usual)} usual "
            f"for it.\n→ look at {flag.look_at}",
            style="yellow",
            soft_wrap=True,
        )
    for note in verdict.notes:
        console.print(f"\n{note}", style="yellow", soft_wrap=True)
    if spread(verdict) > UNSTEADY:
        console.print(
            f"\nThe slowest round took {percent(spread(verdict), digits=0)} longer than the fastest: something else "
            "keeps\nthis machine busy. Try again when it is quiet.",
            style="yellow",
        )


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
    """To, from and within each GPU."""
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


def pair_table(pairs: list[PairRate]) -> Table:
    """Between two of a kind."""
    linked = any(pair.kind for pair in pairs)
    one_sided = pairs[0].between == "workers"
    table = _table("pair", "one way", "low–high", "both ways", "latency", *(("usual", "joined by") if linked else ()))
    if linked:
        table.columns[-1].justify = "left"
    for pair in pairs:
        kind = f"{in_words(pair.kind)} ({pair.kind})" if pair.kind else "-"
        table.add_row(
            f"{pair.a}–{pair.b}" if one_sided else f"{pair.a}→{pair.b}",
            gb(pair.gb_per_s),
            f"{gb(pair.low)}–{gb(pair.high)}",
            gb(pair.both_ways_gb_per_s),
            seconds(pair.latency),
            *((gb(pair.usual) if pair.usual else "-", kind) if linked else ()),
        )
    return table


def op_table(found: list[CollectiveRate]) -> Table:
    """One collective: a line a size, a pair of columns a way of doing it."""
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
    return {"memory": "through shared memory", "gloo": "over Gloo (direct path off)"}.get(backend, backend)


def size(number: int) -> str:
    """1024 is `1 KiB`."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= step:
            return f"{number / step:.4g} {unit}"
    return f"{number} B"


def gb(value: float) -> str:
    """GB/s: three digits at most."""
    for least, digits in ((100, 0), (10, 1), (0.1, 2)):
        if value >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.1g}"
