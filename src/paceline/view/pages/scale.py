"""What `scale` found: throughput by workers, and what efficiency is lost to."""

from __future__ import annotations

import msgspec

from paceline.trials.scale.charts import charts
from paceline.trials.scale.series import Verdict
from paceline.trials.scale.why import CAUSES
from paceline.units import percent
from paceline.view.ui.blocks import Block, Note, Tile, Tiles
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.verdicts import HIGH, LOW, SPEED
from paceline.view.ui.wording import say


def scaling(told: Verdict) -> list[Block]:
    rows = []
    for point in told.points:
        why = point.why
        lost = {f"lost_{cause}": why.lost.get(cause) for cause in CAUSES} if why else {}
        rows.append({**msgspec.to_builtins(point), **lost, "sentence": why.sentence if why else ""})
    largest = told.points[-1] if told.points else None
    tiles = [Tile(label="scaling", value=told.mode, how="strong: the batch is kept; weak: it grows with the workers.")]
    if largest:
        tiles += [
            Tile(
                label=f"speed-up at {largest.workers}",
                value=say(largest.speedup, "times"),
                how="samples/s, by those of the smallest number of workers.",
                detail=f"{say(largest.speedup_low, 'times')} to {say(largest.speedup_high, 'times')}",
            ),
            Tile(
                label="efficiency",
                value=percent(largest.efficiency),
                how="The speed-up by worker: 100 % is perfect.",
                tone="good" if largest.efficiency > 0.85 else "warn",
            ),
        ]
    same = told.same_numbers
    tiles.append(
        Tile(
            label="same numbers",
            value="yes" if same.checked and same.same else "no" if same.checked else "not checked",
            how="Losses of every step against those of the smallest number of workers.",
            detail=same.why or f"largest difference {say(same.max_difference, 'number')}",
            tone="good" if same.checked and same.same else "warn",
        )
    )
    blocks: list[Block] = [Tiles(tiles)]
    blocks += [Note(text=row["sentence"]) for row in rows[-1:] if row["sentence"]]
    blocks += charts(told)
    lost_how = "Points of efficiency that it costs, against the smallest number of workers; below zero is a gain."
    blocks.append(
        Grid(
            name="points",
            title="Points",
            columns=(
                Column(key="workers", title="workers", how="Of the trial.", kind="count"),
                SPEED,
                LOW,
                HIGH,
                Column(key="speedup", title="speed-up", how="samples/s, by the base's.", kind="times"),
                Column(key="efficiency", title="efficiency", how="The speed-up by worker.", kind="share", bar=True),
                *(Column(key=f"lost_{cause}", title=f"lost: {cause}", how=lost_how, kind="share") for cause in CAUSES),
                Column(key="sentence", title="why", how="The largest causes, in words."),
            ),
            rows=rows,
        )
    )
    blocks += [Note(text=f"{f.workers} workers, round {f.round}: {f.message}", tone="bad") for f in told.failures[:20]]
    return blocks
