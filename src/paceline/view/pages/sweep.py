"""What `sweep` found: throughput and memory by batch."""

from __future__ import annotations

import msgspec

from paceline.trials.sweep.charts import charts
from paceline.trials.sweep.search import Verdict
from paceline.units import rate
from paceline.view.ui.blocks import Block, Note, Tile, Tiles
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.verdicts import HIGH, LOW, SPEED


def sweeping(told: Verdict) -> list[Block]:
    speeds = {point.batch: point.samples_per_s for point in told.points if point.fits}
    named = (
        ("knee", told.knee, "The smallest batch within 5 % of the best.", "good"),
        ("best", told.best, "The batch with most samples a second.", ""),
        ("largest that fits", told.largest, "The largest batch that was measured well.", ""),
        ("the script's own", told.own, "The batch that the script asks for.", ""),
    )
    tiles = [
        Tile(
            label=label,
            value=f"{batch:,}",
            how=how,
            detail=f"{rate(speeds[batch])} samples/s" if batch in speeds else "",
            tone="good" if tone else "",
        )
        for label, batch, how, tone in named
        if batch is not None
    ]
    blocks: list[Block] = [Tiles(tiles)]
    if told.why:
        blocks.append(Note(text=f"It went no further: {told.why}." if told.ceiling else told.why))
    if told.keep:
        blocks.append(Note(text=f"To train with the knee's batch: --mod {told.keep}", tone="good"))
    blocks += charts(told)
    blocks.append(
        Grid(
            name="points",
            title="Batches",
            columns=(
                Column(key="batch", title="batch", how="Samples a step, of all workers.", kind="count"),
                Column(key="fits", title="fits", how="Whether the trial ended well.", kind="flag"),
                SPEED,
                LOW,
                HIGH,
                Column(key="memory", title="memory", how="The peak of the worker that took most.", kind="bytes"),
                Column(key="rounds", title="rounds", how="Trials of this batch.", kind="count"),
                Column(key="message", title="why not", how="What ended the trial."),
            ),
            rows=[
                msgspec.to_builtins(point)
                if point.fits
                else {"batch": point.batch, "fits": False, "message": point.message}
                for point in told.points
            ],
        )
    )
    return blocks
