"""Charts of a bandwidth verdict: collectives by message size as curves, pairs as heat maps."""

from __future__ import annotations

import math
from itertools import groupby

from paceline.charts.chart import Axis, Chart, HeatMap, Line
from paceline.trials.bandwidth.verdict import CollectiveRate, PairRate, Verdict, matrices
from paceline.units import size

COLOURS = ("backward", "optimizer", "communication", "data", "forward", "evaluation", "other")


ENDS = {"gpus": "GPUs", "workers": "workers", "hosts": "hosts"}  # what a pair is a pair of
FEWEST = 3  # ends of a heat map: between two there is only one number


def pairs(verdict: Verdict) -> list[Chart]:
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


def collectives(verdict: Verdict) -> list[Chart]:
    """One chart per collective, one line per implementation."""
    by_op = sorted(verdict.collectives, key=lambda each: each.op)
    ops = [(op, list(found)) for op, found in groupby(by_op, key=lambda each: each.op)]
    return [_curves(op, found, wide=len(ops) == 1) for op, found in ops]


def _kind(pair: PairRate) -> tuple[str, str, bool]:
    return pair.between, pair.backend, pair.direct


def _curves(op: str, collectives: list[CollectiveRate], *, wide: bool) -> Chart:
    ways: dict[str, list[CollectiveRate]] = {}
    for each in sorted(collectives, key=lambda each: each.bytes):
        name = each.backend if each.algorithm in ("copied", "its own") else f"{each.backend}, {each.algorithm}"
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
