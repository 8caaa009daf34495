"""The page of `bandwidth`: pairs as a matrix, collectives by message size as curves."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paceline.trials.bandwidth import charts
from paceline.trials.bandwidth.verdict import Verdict
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Page
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.verdicts import as_verdict

RATE = "Median over rounds, in GB/s (10⁹ bytes per second)."
WORKERS = Column(key="workers", title="workers", how="Number of workers that take part.", kind="count")
BYTES = Column(key="bytes", title="size", how="Message size on each worker.", kind="bytes")


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    verdict = as_verdict(record, Verdict)
    blocks: list[Block] = [
        Note(
            text=f"{flag.what}: {flag.gb_per_s:.3g} GB/s, {flag.share:.0%} of the usual {flag.usual:.3g} GB/s.",
            advice=f"Look at {flag.look_at}",
            tone="warn",
        )
        for flag in verdict.flags[:20]
    ]
    blocks += [Note(text=failure, tone="bad") for failure in verdict.failures[:20]]
    blocks += [*charts.pairs(verdict), *charts.collectives(verdict)]
    blocks += _grids(verdict)
    blocks += [Note(text=note) for note in verdict.notes[:20]]
    return Page(title="Communication", blocks=blocks)


def _grids(verdict: Verdict) -> list[Block]:
    found: list[Block] = []
    if verdict.pairs:
        found.append(
            Grid(
                name="pairs",
                title="Pairs",
                columns=(
                    Column(key="between", title="between", how="Whether the pair is two workers or two GPUs."),
                    Column(key="a", title="from", how="Number of the sender.", kind="count"),
                    Column(key="b", title="to", how="Number of the receiver.", kind="count"),
                    Column(key="backend", title="over", how="Backend that sends the message."),
                    Column(
                        key="direct",
                        title="direct",
                        how="Whether data move peer to peer, not through the host.",
                        kind="flag",
                    ),
                    BYTES,
                    Column(key="gb_per_s", title="GB/s", how=f"One way. {RATE}", kind="number"),
                    Column(key="low", title="low", how="The slowest round, GB/s.", kind="number"),
                    Column(key="high", title="high", how="The fastest round, GB/s.", kind="number"),
                    Column(
                        key="both_ways_gb_per_s",
                        title="both ways",
                        how="Sum of both directions at once, GB/s.",
                        kind="number",
                    ),
                    Column(key="latency", title="latency", how="Median time of the smallest message.", kind="seconds"),
                    Column(key="kind", title="link", how="Kind of link, as the driver names it."),
                    Column(
                        key="usual", title="usual", how="Usual bandwidth of this kind of link, GB/s.", kind="number"
                    ),
                ),
                rows=msgspec.to_builtins(verdict.pairs),
            )
        )
    if verdict.copies:
        found.append(
            Grid(
                name="copies",
                title="To, from and within GPUs",
                columns=(
                    Column(key="gpu", title="GPU", how="Number of the GPU.", kind="count"),
                    Column(key="name", title="name", how="GPU name, from the driver."),
                    Column(key="path", title="path", how="Source and destination of the copy."),
                    Column(key="pinned", title="pinned", how="Whether the host memory was pinned.", kind="flag"),
                    BYTES,
                    Column(key="gb_per_s", title="GB/s", how=RATE, kind="number"),
                    Column(key="usual", title="usual", how="Usual bandwidth of the slot, GB/s.", kind="number"),
                    Column(key="latency", title="latency", how="Median time of the smallest copy.", kind="seconds"),
                ),
                rows=msgspec.to_builtins(verdict.copies),
            )
        )
    if verdict.collectives:
        found.append(
            Grid(
                name="collectives",
                title="Collectives",
                columns=(
                    Column(key="op", title="op", how="The collective."),
                    Column(key="backend", title="backend", how="Backend that ran the collective."),
                    Column(key="algorithm", title="algorithm", how="As the backend names it."),
                    WORKERS,
                    BYTES,
                    Column(key="seconds", title="took", how="Median of the rounds.", kind="seconds"),
                    Column(key="low", title="fastest", how="The fastest round.", kind="seconds"),
                    Column(key="high", title="slowest", how="The slowest round.", kind="seconds"),
                    Column(key="algbw", title="algbw", how="Message size divided by time, GB/s.", kind="number"),
                    Column(
                        key="busbw",
                        title="busbw",
                        how="Bus bandwidth: algbw times the collective's factor, GB/s.",
                        kind="number",
                    ),
                    Column(
                        key="share",
                        title="share of copy rate",
                        how="Rate relative to a memory copy of the same size by all workers at once.",
                        kind="share",
                    ),
                ),
                rows=msgspec.to_builtins(verdict.collectives),
            )
        )
    return found
