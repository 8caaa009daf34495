"""The page of `sweep`: throughput and memory by batch size."""

from __future__ import annotations

import msgspec

from paceline.trials.sweep.charts import charts
from paceline.trials.sweep.search import Ceiling, Verdict
from paceline.units import rate
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, CommandBlock, Note, Tile, Tiles
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.verdicts import HIGH, LOW, SPEED
from paceline.view.ui.what_was_run import command


def sweeping(verdict: Verdict, record: Opened) -> list[Block]:
    speeds = {point.batch: point.samples_per_s for point in verdict.points if point.fits}
    named = (
        ("knee", verdict.knee, "Smallest batch size within 5 % of the best throughput.", "good"),
        ("best", verdict.best, "Batch size with the highest throughput.", ""),
        (
            "largest that fits" if verdict.ceiling is Ceiling.MEMORY else "largest tried",
            verdict.largest,
            "Largest batch size whose trials succeeded. It is the largest that fits if a larger one ran out of memory.",
            "",
        ),
        ("the script's own", verdict.own, "Batch size that the script sets.", ""),
    )
    tiles = [
        Tile(
            label=label,
            value=f"{batch:,}",
            how=how,
            detail=f"{rate(speeds[batch])} samples/s" if batch in speeds else "",
            tone="good" if tone else "",
            large=label in ("knee", "best"),
        )
        for label, batch, how, tone in named
        if batch is not None
    ]
    blocks: list[Block] = [Tiles(tiles)]
    if verdict.tied:
        blocks.append(
            Note(
                text=f"{min(verdict.tied):,} to {max(verdict.tied):,} samples a step are equally fast, within the "
                "spread of the measurements: a tie."
            )
        )
    if verdict.warning:
        blocks.append(Note(text=verdict.warning, tone="warn"))
    if verdict.why:
        blocks.append(Note(text=f"The sweep stopped: {verdict.why.rstrip('.')}." if verdict.ceiling else verdict.why))
    if verdict.keep:
        kept = command(record, verb="run", more=["--mod", verdict.keep])
        blocks.append(CommandBlock(title="Train with the batch size of the knee", command=kept))
    if not verdict.points:
        return blocks
    blocks += charts(verdict)
    blocks.append(
        Grid(
            name="points",
            title="Batches",
            columns=(
                Column(key="batch", title="batch", how="Samples per step, over all workers.", kind="count"),
                Column(
                    key="fits", title="fits", how="Whether the batch fits into memory; empty: not known.", kind="flag"
                ),
                SPEED,
                LOW,
                HIGH,
                Column(key="memory", title="memory", how="Peak memory of the worker that used most.", kind="bytes"),
                Column(key="rounds", title="rounds", how="Number of trials of this batch size.", kind="count"),
                Column(key="message", title="why not", how="Why there is no measurement."),
            ),
            rows=[
                msgspec.to_builtins(point)
                if point.fits
                else {"batch": point.batch, "fits": point.fits, "message": point.message}
                for point in verdict.points
            ],
        )
    )
    return blocks
