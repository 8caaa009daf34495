"""The report of `bandwidth`: copies of GPUs, pairs, and collectives by message size, with the links that are slow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec

from paceline.charts.chart import Axis, Chart, HeatMap, Line
from paceline.reports.report import Column, Figure, Report, Sentence, Table
from paceline.reports.wording import Kind, gb, say
from paceline.topology.links import in_words
from paceline.trials.bandwidth.verdict import (
    CollectiveRate,
    CopyRate,
    Matrix,
    PairRate,
    Verdict,
    matrices,
    unsteady,
)
from paceline.units import count, percent, size

RATE = "Median over rounds; GB/s are 10⁹ bytes per second."
COLOURS = ("backward", "optimizer", "communication", "data", "forward", "evaluation", "other")
ENDS = {"gpus": "GPUs", "workers": "workers", "hosts": "hosts"}  # what a pair is a pair of
FEWEST = 3  # ends of a heat map: between two there is only one number
FEW = 6  # largest number of pairs that a terminal lists; of more, it shows matrices
ABREAST = 3  # implementations of a collective that a terminal shows side by side
WAYS = {"memory": "through shared memory", "gloo": "over Gloo"}
OWN = ("copied", "its own")  # algorithms of backends that have one
BYTES = Column("bytes", "size", "Message size on each worker.", "bytes", on="page")
LOW, HIGH = (
    Column("low", "low, GB/s", "The slowest round.", "gb"),
    Column("high", "high, GB/s", "The fastest round.", "gb"),
)


def report(verdict: Verdict) -> Report:
    warning = unsteady(verdict)
    return Report(
        lead=[Sentence("interrupted: these are the measurements made before", "warn")] * verdict.interrupted,
        figures=_figures(verdict),
        said=[
            *([Sentence(warning, "warn")] if warning else []),
            *(
                Sentence(
                    f"{flag.what}: {gb(flag.gb_per_s)} GB/s, {percent(flag.share, digits=0)} of the usual "
                    f"{gb(flag.usual)} GB/s.",
                    "warn",
                    f"Look at {flag.look_at}",
                )
                for flag in verdict.flags[:20]
            ),
            *(Sentence(failure, "bad") for failure in verdict.failures[:20]),
        ],
        charts=[*curves(verdict), *pair_maps(verdict)],
        tables=[*_copies(verdict.copies), *pair_tables(verdict.pairs, verdict.hosts), *_collectives(verdict)],
        after=[Sentence(note, "warn") for note in verdict.notes[:20]],
    )


def headline(verdict: Verdict) -> str:
    """The best rate of an all-reduce, for a list."""
    rates = [each.busbw for each in verdict.collectives if each.op == "all_reduce"]
    return f"all-reduce {max(rates):.3g} GB/s" if rates else ""


def _figures(verdict: Verdict) -> list[Figure]:
    """The number of workers, the slowest pair of each transport, and the best rate of each backend's all-reduce."""
    copying = ""
    if verdict.copy_limits:
        limit = max(verdict.copy_limits, key=lambda each: each.bytes)
        copying = (
            f"Copying {size(limit.bytes)} on all workers at once: {gb(limit.gb_per_s)} GB/s together. “of copy” is\n"
            "the fastest rate in a row, divided by the copy rate at that size."
        )
    how = "Workers between which the messages were measured."
    figures = [Figure("workers", f"{verdict.workers:,}", how, said=copying)]
    pairs: dict[str, list[PairRate]] = {}
    for pair in verdict.pairs:
        direct = "" if pair.direct else ", not direct"
        pairs.setdefault(f"{ENDS.get(pair.between, pair.between)}, {pair.backend}{direct}", []).append(pair)
    for name, found in pairs.items():
        slowest = min(found, key=lambda pair: pair.gb_per_s)
        detail = f"latency {say(max(pair.latency for pair in found), 'seconds')}"
        detail += f"; slowest of {len(found)} pairs: {slowest.a} and {slowest.b}" if len(found) > 1 else ""
        how = f"One way. {RATE} Of several pairs, the slowest."
        figures.append(Figure(f"one way: {name}", f"{gb(slowest.gb_per_s)} GB/s", how, detail))
    for backend in dict.fromkeys(each.backend for each in verdict.collectives):
        reduced = [each for each in verdict.collectives if each.backend == backend and each.op == "all_reduce"]
        if reduced:
            best = max(reduced, key=lambda each: each.busbw)
            detail = f"at {size(best.bytes)}; {say(min(each.seconds for each in reduced), 'seconds')} at least"
            how = "The highest bus bandwidth over message sizes."
            figures.append(Figure(f"all-reduce: {backend}", f"{gb(best.busbw)} GB/s", how, detail))
    return figures


def _copies(copies: Sequence[CopyRate]) -> list[Table]:
    """Copies to, from and within each GPU."""
    names = Counter({copy.gpu: copy.name for copy in copies}.values())
    told = ", ".join(name if many == 1 else f"{many} × {name}" for name, many in names.items())
    title = f"host ↔ device and device memory, GB/s · {told}"
    memory = {None: "", True: "pinned", False: "pageable"}
    columns = (
        Column("gpu", "GPU", "Number of the GPU.", "count"),
        Column("name", "name", "GPU name, from the driver.", on="page"),
        Column("path", "path", "Source and destination of the copy."),
        Column("pinned", "memory", "Whether the host memory was pinned.", text="memory"),
        BYTES,
        Column("gb_per_s", "GB/s", RATE, "gb", ends=(LOW, HIGH)),
        Column("usual", "usual", "Usual bandwidth of the slot, GB/s.", "gb"),
        Column("latency", "latency", "Median time of the smallest copy.", "seconds"),
    )
    rows = [msgspec.to_builtins(copy) | {"memory": memory[copy.pinned], "title": title} for copy in copies]
    table = Table(name="copies", title="To, from and within GPUs", columns=columns, rows=rows, by="title")
    return [table] if copies else []


def pair_tables(pairs: Sequence[PairRate], hosts: Sequence[str]) -> list[Table]:
    """Rates between two workers, two GPUs, or two hosts with these names."""
    usual = "Usual bandwidth of this kind of link, GB/s."
    columns = (
        Column("between", "between", "Whether the pair is workers, GPUs or hosts.", on="page"),
        Column("pair", "pair", on="terminal"),
        Column("a", "from", "Number of the sender.", "count", on="page"),
        Column("b", "to", "Number of the receiver.", "count", on="page"),
        Column("backend", "over", "Backend that sends the message.", on="page"),
        Column("direct", "direct", "Whether data move peer to peer, not through the host.", "flag", on="page"),
        BYTES,
        Column("gb_per_s", "one way", f"GB/s one way. {RATE}", "gb", ends=(LOW, HIGH)),
        Column("both_ways_gb_per_s", "both ways", "GB/s: sum of both directions at once.", "gb"),
        Column("latency", "latency", "Median time of the smallest message.", "seconds"),
        Column("usual", "usual", usual, "gb"),
        Column("kind", "joined by", "Kind of link, as the driver names it.", text="link"),
    )

    def row(pair: PairRate) -> dict[str, Any]:
        one, other = (hosts[n] if pair.between == "hosts" else n for n in (pair.a, pair.b))
        named = f"{one}{'→' if pair.between == 'gpus' else '–'}{other}"
        link = f"{in_words(pair.kind)} ({pair.kind})" if pair.kind else ""
        return msgspec.to_builtins(pair) | {"pair": named, "link": link, "title": f"pairs of {title}, GB/s"}

    whole = Table(name="pairs", title="Pairs", columns=columns, rows=[], by="title")
    tables, rows = [], []
    for between, backend in dict.fromkeys((pair.between, pair.backend) for pair in pairs):
        found = [pair for pair in pairs if (pair.between, pair.backend) == (between, backend)]
        title = f"{ENDS.get(between, between)}, {WAYS.get(backend, backend)}"
        listed = [row(pair) for pair in found]
        rows += listed
        if len(found) <= FEW:
            tables.append(replace(whole, rows=listed, on="terminal"))
            continue
        numbers, one_way, both_ways, latencies = matrices(found)
        ends = [hosts[number] if between == "hosts" else str(number) for number in numbers]
        tables.append(_matrix(f"{title}: GB/s one way", ends, one_way, "gb"))
        tables.append(_matrix(f"{title}: GB/s both ways", ends, both_ways, "gb"))
        tables.append(_matrix(f"{title}: latency", ends, latencies, "seconds"))
    return [replace(whole, rows=rows, on="page"), *tables] if rows else []


def _matrix(title: str, names: Sequence[str], cells: Matrix, kind: Kind) -> Table:
    """Rates from each end (the row) to each other end (the column)."""
    rows: list[dict[str, Any]] = [{"title": title, "": name} for name in names]
    for row, line in zip(rows, cells, strict=True):
        row.update({name: "X" if math.isnan(cell) else cell for name, cell in zip(names, line, strict=True)})
    columns = [Column("", "", kind="text"), *(Column(name, name, kind=kind) for name in names)]
    return Table(name="matrix", title=title, columns=columns, rows=rows, by="title", on="terminal")


def _collectives(verdict: Verdict) -> list[Table]:
    if not verdict.collectives:
        return []
    copied = "Rate relative to a memory copy of the same size by all workers at once."
    columns = (
        Column("op", "op", "The collective."),
        Column("backend", "backend", "Backend that ran the collective."),
        Column("algorithm", "algorithm", "As the backend names it."),
        Column("workers", "workers", "Number of workers that take part.", "count"),
        BYTES,
        Column("seconds", "took", "Median of the rounds.", "seconds"),
        Column("low", "fastest", "The fastest round.", "seconds"),
        Column("high", "slowest", "The slowest round.", "seconds"),
        Column("algbw", "algbw, GB/s", "Message size divided by time.", "gb"),
        Column("busbw", "busbw, GB/s", "Bus bandwidth: algbw times the collective's factor.", "gb"),
        Column("share", "share of copy rate", copied, "percent"),
    )
    rows = msgspec.to_builtins(verdict.collectives)
    tables = [Table(name="collectives", title="Collectives", columns=columns, rows=rows, on="page")]
    for op in dict.fromkeys(each.op for each in verdict.collectives):
        found = [each for each in verdict.collectives if each.op == op]
        ways = list(dict.fromkeys((each.backend, each.algorithm) for each in found))
        title = f"{op}, {count(verdict.workers, 'worker')}: time and busbw in GB/s"
        tables += [_side_by_side(title, found, ways[at : at + ABREAST]) for at in range(0, len(ways), ABREAST)]
    return tables


def _side_by_side(title: str, found: Sequence[CollectiveRate], ways: Sequence[tuple[str, str]]) -> Table:
    """One collective: one row per message size, two columns per implementation."""
    rows: dict[int, dict[str, Any]] = {}
    for each in sorted(found, key=lambda each: each.bytes):
        if (each.backend, each.algorithm) in ways:
            row = rows.setdefault(each.bytes, {"title": title, "bytes": each.bytes, "share": 0.0})
            name = way_name(each.backend, each.algorithm)
            row |= {name: each.seconds, f"{name}, GB/s": each.busbw, "share": max(row["share"], each.share)}
    columns = [Column("bytes", "size", kind="bytes")]
    for name in (way_name(*way) for way in ways):
        columns += [Column(name, name, kind="seconds"), Column(f"{name}, GB/s", "GB/s", kind="gb")]
    columns.append(Column("share", "of copy", kind="percent"))
    return Table(name=title, title=title, columns=columns, rows=[*rows.values()], by="title", on="terminal")


def way_name(backend: str, algorithm: str) -> str:
    """`memory in place`, `gloo`, `ring`."""
    if algorithm in OWN:
        return backend
    return algorithm.replace("_", "-") if backend == "network" else f"{backend} {algorithm}"


def pair_maps(verdict: Verdict) -> list[Chart]:
    """Three heat maps per transport with at least three ends: one way, both ways, latency."""
    found = []
    for (between, backend, direct), of_kind in groupby(sorted(verdict.pairs, key=_kind), key=_kind):
        names, one_way, both_ways, latency = matrices(list(of_kind))
        if len(names) < FEWEST:
            continue
        end = {"gpus": "GPU", "hosts": "host"}.get(between, "worker")
        labels = [verdict.hosts[name] if end == "host" and verdict.hosts else f"{end} {name}" for name in names]
        what = f"{ENDS.get(between, between)}, {backend}{'' if direct else ', not direct'}"
        rate = "GB/s (10⁹ bytes), the median of the rounds."
        for title, caption, matrix, scale in (
            ("Bandwidth one way", f"One way: {rate}", one_way, 1.0),
            ("Bandwidth both ways", f"Sum of both directions at once: {rate}", both_ways, 1.0),
            ("Latency", "Latency: time of the smallest message, one way; median.", latency, 1e6),
        ):
            cells = [[None if math.isnan(value) else value * scale for value in row] for row in matrix]
            found.append(
                Chart(
                    name=f"{title}-{what}".lower().replace(",", "").replace(" ", "-"),
                    title=f"{title}: {what}",
                    caption=caption,
                    x=Axis(title="to", kind="category"),
                    y=Axis(title="from", kind="category", reverse=True),
                    series=[
                        HeatMap(
                            name=title,
                            x=labels,
                            y=labels,
                            cells=cells,
                            unit="µs" if title == "Latency" else "GB/s",
                            colours="heat" if title == "Latency" else "rates",
                        )
                    ],
                    height=min(640, 120 + 40 * max(len(names), 3)),
                )
            )
    return found


def curves(verdict: Verdict) -> list[Chart]:
    """One chart per collective, one line per implementation."""
    by_op = sorted(verdict.collectives, key=lambda each: each.op)
    ops = [(op, list(found)) for op, found in groupby(by_op, key=lambda each: each.op)]
    return [_curves(op, found, wide=len(ops) == 1) for op, found in ops]


def _kind(pair: PairRate) -> tuple[str, str, bool]:
    return pair.between, pair.backend, pair.direct


def _curves(op: str, collectives: list[CollectiveRate], *, wide: bool) -> Chart:
    ways: dict[str, list[CollectiveRate]] = {}
    for each in sorted(collectives, key=lambda each: each.bytes):
        name = each.backend if each.algorithm in OWN else f"{each.backend}, {each.algorithm}"
        ways.setdefault(f"{name}, {each.workers} workers", []).append(each)
    sizes = sorted({point.bytes for point in collectives})
    return Chart(
        name=f"curve-{op}",
        title=op.replace("_", "-"),
        caption="busbw by message size, GB/s (10⁹ bytes), medians; bars: slowest and fastest round. busbw is algbw "
        "times the bytes that each link carries per byte of the message, so that busbw is comparable with a link's "
        "rate for any number of workers.",
        x=Axis(title="message", kind="log", ticks=[(t, size(t)) for t in sizes[:: max(1, len(sizes) // 8)]]),
        y=Axis(title="busbw, GB/s", kind="log"),
        series=[
            Line(
                name=name,
                x=[p.bytes for p in points],
                y=[p.busbw for p in points],
                # The slowest round has the lowest rate.
                low=[p.busbw * p.seconds / p.high if p.high > 0 else p.busbw for p in points],
                high=[p.busbw * p.seconds / p.low if p.low > 0 else p.busbw for p in points],
                colour=COLOURS[number % len(COLOURS)],
                markers=True,
                text=[size(p.bytes) for p in points],
            )
            for number, (name, points) in enumerate(ways.items())
        ],
        height=300,
        wide=wide,
    )
