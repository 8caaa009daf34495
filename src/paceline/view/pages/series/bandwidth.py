"""The page of `bandwidth`: collectives by message size as curves, and, from three workers on, pairs as heat maps."""

from __future__ import annotations

import msgspec

from paceline.trials.bandwidth import charts
from paceline.trials.bandwidth.verdict import PairRate, Verdict, unsteady
from paceline.units import percent, size
from paceline.view.records.wording import say
from paceline.view.ui.blocks import Block, Note, Tile, Tiles
from paceline.view.ui.grid import Column, Grid

RATE = "Median over rounds; GB/s are 10⁹ bytes per second."
WORKERS = Column(key="workers", title="workers", how="Number of workers that take part.", kind="count")
BYTES = Column(key="bytes", title="size", how="Message size on each worker.", kind="bytes")


def measuring(verdict: Verdict) -> list[Block]:
    blocks: list[Block] = [Tiles(_tiles(verdict))]
    if warning := unsteady(verdict):
        blocks.append(Note(text=warning, tone="warn"))
    blocks += [
        Note(
            text=f"{flag.what}: {flag.gb_per_s:.3g} GB/s, {percent(flag.share, digits=0)} of the usual "
            f"{flag.usual:.3g} GB/s.",
            advice=f"Look at {flag.look_at}",
            tone="warn",
        )
        for flag in verdict.flags[:20]
    ]
    blocks += [Note(text=failure, tone="bad") for failure in verdict.failures[:20]]
    blocks += [*charts.collectives(verdict), *charts.pairs(verdict)]
    blocks += _grids(verdict)
    blocks += [Note(text=note) for note in verdict.notes[:20]]
    return blocks


def _tiles(verdict: Verdict) -> list[Tile]:
    """The number of workers, the slowest pair of each transport, and the best rate of each backend's all-reduce."""
    tiles = [
        Tile(label="workers", value=f"{verdict.workers:,}", how="Workers between which the messages were measured."),
    ]
    pairs: dict[str, list[PairRate]] = {}
    for pair in verdict.pairs:
        direct = "" if pair.direct else ", not direct"
        pairs.setdefault(f"{charts.ENDS.get(pair.between, pair.between)}, {pair.backend}{direct}", []).append(pair)
    for name, found in pairs.items():
        slowest = min(found, key=lambda pair: pair.gb_per_s)
        tiles.append(
            Tile(
                label=f"one way: {name}",
                value=f"{slowest.gb_per_s:.3g} GB/s",
                how=f"One way. {RATE} Of several pairs, the slowest.",
                detail=f"latency {say(max(pair.latency for pair in found), 'seconds')}"
                + (f"; slowest of {len(found)} pairs: {slowest.a} and {slowest.b}" if len(found) > 1 else ""),
            )
        )
    for backend in dict.fromkeys(each.backend for each in verdict.collectives):
        reduced = [each for each in verdict.collectives if each.backend == backend and each.op == "all_reduce"]
        if reduced:
            best = max(reduced, key=lambda each: each.busbw)
            tiles.append(
                Tile(
                    label=f"all-reduce: {backend}",
                    value=f"{best.busbw:.3g} GB/s",
                    how="The highest bus bandwidth over message sizes.",
                    detail=f"at {size(best.bytes)}; {say(min(each.seconds for each in reduced), 'seconds')} at least",
                )
            )
    return tiles


def _grids(verdict: Verdict) -> list[Block]:
    found: list[Block] = []
    if verdict.pairs:
        found.append(
            Grid(
                name="pairs",
                title="Pairs",
                columns=(
                    Column(key="between", title="between", how="Whether the pair is workers, GPUs or hosts."),
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
                    Column(key="low", title="low, GB/s", how="The slowest round.", kind="number"),
                    Column(key="high", title="high, GB/s", how="The fastest round.", kind="number"),
                    Column(
                        key="both_ways_gb_per_s",
                        title="both ways, GB/s",
                        how="Sum of both directions at once.",
                        kind="number",
                    ),
                    Column(key="latency", title="latency", how="Median time of the smallest message.", kind="seconds"),
                    Column(key="kind", title="link", how="Kind of link, as the driver names it."),
                    Column(
                        key="usual", title="usual, GB/s", how="Usual bandwidth of this kind of link.", kind="number"
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
                    Column(key="usual", title="usual, GB/s", how="Usual bandwidth of the slot.", kind="number"),
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
                    Column(key="algbw", title="algbw, GB/s", how="Message size divided by time.", kind="number"),
                    Column(
                        key="busbw",
                        title="busbw, GB/s",
                        how="Bus bandwidth: algbw times the collective's factor.",
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
