"""What `bandwidth` measured: from each to each as a matrix, collectives by size as curves."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paceline.trials.bandwidth import charts
from paceline.trials.bandwidth.verdict import Verdict
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Page
from paceline.view.ui.grid import Column, Grid
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
    blocks += [*charts.pairs(told), *charts.collectives(told)]
    blocks += _grids(told)
    blocks += [Note(text=note) for note in told.notes[:20]]
    return Page(title="Communication", blocks=blocks)


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
