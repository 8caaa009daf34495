"""What `bandwidth` measured: from each to each as a matrix, collectives by size as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby

import msgspec

from paceline.trials.bandwidth.verdict import CollectiveRate, PairRate, Verdict, matrices
from paceline.units import size
from paceline.view.records.record import Opened
from paceline.view.ui import charts
from paceline.view.ui.blocks import Block, Chart, Note, Page
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.utilisation import COLOURS
from paceline.view.ui.verdicts import as_verdict

RATE = "GB/s (10⁹ bytes), the median of the rounds."
WORKERS = Column(key="workers", title="workers", how="Taking part.", kind="count")
BYTES = Column(key="bytes", title="size", how="Of the message, on each worker.", kind="bytes")


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    told = as_verdict(record, Verdict)
    blocks: list[Block] = [
        Note(
            text=f"{flag.what}: {flag.gb_per_s:.3g} GB/s, {flag.share:.0%} of what is usual ({flag.usual:.3g} GB/s).",
            advice=f"Look at {flag.look_at}",
            tone="warn",
        )
        for flag in told.flags[:20]
    ]
    blocks += [Note(text=failure, tone="bad") for failure in told.failures[:20]]
    kinds = sorted(told.pairs, key=_kind)
    for (between, backend, direct), pairs in groupby(kinds, key=_kind):
        blocks += _matrix(list(pairs), f"{between}, {backend}{'' if direct else ', not direct'}")
    by_op = sorted(told.collectives, key=lambda each: each.op)
    ops = [(op, list(collectives)) for op, collectives in groupby(by_op, key=lambda each: each.op)]
    blocks += [_curve(op, collectives, wide=len(ops) == 1) for op, collectives in ops]
    blocks += _grids(told)
    blocks += [Note(text=note) for note in told.notes[:20]]
    return Page(title="Communication", blocks=blocks)


def _kind(pair: PairRate) -> tuple[str, str, bool]:
    return pair.between, pair.backend, pair.direct


def _matrix(pairs: list[PairRate], what: str) -> list[Block]:
    names, one_way, _, latency = matrices(pairs)
    labels = [f"{'GPU' if pairs[0].between == 'gpus' else 'worker'} {name}" for name in names]
    charts_made: list[Block] = []
    for key, title, matrix, unit, scale in (
        ("rate", "Bandwidth", one_way, "GB/s", 1.0),
        ("latency", "Latency", latency, "µs", 1e6),
    ):
        cells = [[None if math.isnan(value) else value * scale for value in row] for row in matrix]
        charts_made.append(
            Chart(
                name=f"{key}-{what.replace(' ', '-').replace(',', '')}",
                title=f"{title}: {what}",
                how=f"{'One way, ' + RATE if key == 'rate' else 'Seconds for the smallest message, one way; median.'}",
                data=[
                    charts.heat(
                        labels,
                        labels,
                        cells,
                        unit=unit,
                        zmin=0,
                        colorscale="rates" if key == "rate" else "heat",
                        texttemplate="%{z:.3g}" if len(names) <= 16 else "",
                        hovertemplate="%{y} → %{x}: %{z:.4g} " + unit + "<extra></extra>",
                    )
                ],
                layout=charts.axes("", "", yaxis={"autorange": "reversed"}, xaxis={"side": "top"}),
                height=min(640, 120 + 40 * max(len(names), 3)),
            )
        )
    return charts_made


def _curve(op: str, collectives: list[CollectiveRate], *, wide: bool) -> Chart:
    ways: dict[str, list[CollectiveRate]] = {}
    for each in collectives:
        name = each.backend if each.algorithm in ("copied", "its own") else f"{each.backend}, {each.algorithm}"
        ways.setdefault(f"{name}, {each.workers} workers", []).append(each)
    lines = []
    for number, (name, points) in enumerate(ways.items()):
        points.sort(key=lambda point: point.bytes)
        lines.append(
            charts.line(
                [point.bytes for point in points],
                [point.busbw for point in points],
                name=charts.label(name),
                colour=COLOURS[number % len(COLOURS)],
                mode="lines+markers",
                text=[size(point.bytes) for point in points],
                hovertemplate="%{text}: %{y:.3g} GB/s<extra>%{fullData.name}</extra>",
            )
        )
    sizes = sorted({point.bytes for point in collectives})
    ticks = sizes[:: max(1, len(sizes) // 8)]
    return Chart(
        name=f"curve-{op}",
        title=op.replace("_", "-"),
        how=f"busbw by message size: {RATE} algbw times the factor by which a link carries more than the message, so "
        "that it can be held against a link's rate whatever the number of workers.",
        data=lines,
        layout=charts.axes(
            "message",
            "busbw, GB/s",
            xaxis={"type": "log", "tickvals": ticks, "ticktext": [size(t) for t in ticks]},
        ),
        height=300,
        wide=wide,
    )


def _grids(told: Verdict) -> list[Block]:
    found: list[Block] = []
    if told.pairs:
        found.append(
            Grid(
                name="pairs",
                title="Pairs",
                columns=(
                    Column(key="between", title="between", how="Workers, or GPUs."),
                    Column(key="a", title="from", how="Its number.", kind="count"),
                    Column(key="b", title="to", how="Its number.", kind="count"),
                    Column(key="backend", title="over", how="What they speak over."),
                    Column(key="direct", title="direct", how="Peer to peer, not through the host.", kind="flag"),
                    BYTES,
                    Column(key="gb_per_s", title="GB/s", how=f"One way. {RATE}", kind="number"),
                    Column(key="low", title="low", how="The slowest round, GB/s.", kind="number"),
                    Column(key="high", title="high", how="The fastest round, GB/s.", kind="number"),
                    Column(
                        key="both_ways_gb_per_s", title="both ways", how="Both at once, their sum, GB/s.", kind="number"
                    ),
                    Column(key="latency", title="latency", how="Of the smallest message; median.", kind="seconds"),
                    Column(key="kind", title="link", how="As the driver names it."),
                    Column(key="usual", title="usual", how="GB/s that are usual for such a link.", kind="number"),
                ),
                rows=msgspec.to_builtins(told.pairs),
            )
        )
    if told.copies:
        found.append(
            Grid(
                name="copies",
                title="To, from and within GPUs",
                columns=(
                    Column(key="gpu", title="GPU", how="Its number.", kind="count"),
                    Column(key="name", title="name", how="As the driver names it."),
                    Column(key="path", title="path", how="From where to where."),
                    Column(key="pinned", title="pinned", how="The host's memory could not be swapped.", kind="flag"),
                    BYTES,
                    Column(key="gb_per_s", title="GB/s", how=RATE, kind="number"),
                    Column(key="usual", title="usual", how="GB/s that are usual for the slot.", kind="number"),
                    Column(key="latency", title="latency", how="Of the smallest copy; median.", kind="seconds"),
                ),
                rows=msgspec.to_builtins(told.copies),
            )
        )
    if told.collectives:
        found.append(
            Grid(
                name="collectives",
                title="Collectives",
                columns=(
                    Column(key="op", title="op", how="The collective."),
                    Column(key="backend", title="backend", how="What carried it."),
                    Column(key="algorithm", title="algorithm", how="As the backend names it."),
                    WORKERS,
                    BYTES,
                    Column(key="seconds", title="took", how="Median of the rounds.", kind="seconds"),
                    Column(key="low", title="fastest", how="The fastest round.", kind="seconds"),
                    Column(key="high", title="slowest", how="The slowest round.", kind="seconds"),
                    Column(key="algbw", title="algbw", how="Message by time, GB/s.", kind="number"),
                    Column(key="busbw", title="busbw", how="algbw times the op's factor, GB/s.", kind="number"),
                    Column(
                        key="share",
                        title="of a copy's",
                        how="Of the rate at which every worker copies as many bytes at the same time.",
                        kind="share",
                    ),
                ),
                rows=msgspec.to_builtins(told.collectives),
            )
        )
    return found
