"""The page of `scale`: throughput by number of workers, and the causes of lost efficiency."""

from __future__ import annotations

import msgspec

from paceline.trials.scale.charts import charts
from paceline.trials.scale.series import Point, Verdict
from paceline.trials.scale.why import CAUSES
from paceline.units import count, percent
from paceline.view.records.record import Opened
from paceline.view.records.wording import say
from paceline.view.ui.blocks import Block, CommandBlock, Note, Tile, Tiles, Words
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.verdicts import HIGH, LOW, SPEED
from paceline.view.ui.what_was_run import command, failure_note

GOOD = 0.85  # efficiency from which on more workers pay


def scaling(verdict: Verdict, record: Opened) -> list[Block]:
    failures = [
        failure_note(f"{count(f.workers, 'worker')}, round {f.round}: {f.message}") for f in verdict.failures[:20]
    ]
    if not verdict.points:
        return [*failures] or [Note(text="No number of workers was measured to the end.")]
    rows = []
    for point in verdict.points:
        why = point.why
        lost = {f"lost_{cause}": why.lost.get(cause) for cause in CAUSES} if why else {}
        rows.append({**msgspec.to_builtins(point), **lost, "sentence": why.sentence if why else ""})
    largest = verdict.points[-1]
    tiles = [
        Tile(
            label="scaling",
            value=verdict.mode,
            how="strong: the global batch is fixed; weak: it grows with the workers.",
        )
    ]
    if largest:
        tiles += [
            Tile(
                label=f"speed-up at {largest.workers}",
                value=say(largest.speedup, "times"),
                how="samples/s divided by samples/s with the fewest workers.",
                detail=f"{say(largest.speedup_low, 'times')} to {say(largest.speedup_high, 'times')}"
                + (f"; {verdict.tie}" if largest.tied else ""),
                large=True,
            ),
        ]
    if largest and largest.efficiency is not None:
        tiles.append(
            Tile(
                label="efficiency",
                value=percent(largest.efficiency),
                how="Speed-up per worker; 100 % is perfect scaling.",
                tone="" if largest.tied else "good" if largest.efficiency > GOOD else "warn",
                large=True,
            )
        )
    same = verdict.same_numbers
    tiles.append(
        Tile(
            label="same numbers",
            value="yes" if same.checked and same.same else "no" if same.checked else "not checked",
            how="Losses of every step, compared with the losses of the fewest workers.",
            detail=same.why or f"largest difference {say(same.max_difference, 'number')}",
            tone="good" if same.checked and same.same else "warn",
        )
    )
    tiles.sort(key=lambda tile: not tile.large)
    blocks: list[Block] = [Tiles(tiles), *_next(largest, record)]
    if verdict.warning:
        blocks.append(Note(text=verdict.warning, tone="warn"))
    if largest and largest.efficiency is None:
        blocks.append(
            Note(
                text=f"No efficiency: one worker was not measured. Speed-up is against {verdict.base} workers.",
                advice=f"Measure one worker as well: -n 1,{','.join(str(p.workers) for p in verdict.points)}",
            )
        )
    said = [row["sentence"] for row in reversed(rows) if row["sentence"]]
    if said:
        blocks.append(Words(title="Why not more?", lines=said, how="From the phases of each trial's steps."))
    blocks += charts(verdict)
    lost_how = "Efficiency lost to this cause, compared with the fewest workers; a negative value is a gain."
    blocks.append(
        Grid(
            name="points",
            title="Points",
            columns=(
                Column(key="workers", title="workers", how="Number of workers in the trial.", kind="count"),
                SPEED,
                LOW,
                HIGH,
                Column(key="speedup", title="speed-up", how="samples/s divided by the first row's.", kind="times"),
                Column(key="efficiency", title="efficiency", how="Speed-up per worker.", kind="share", bar=True),
                *(
                    Column(key=f"lost_{cause}", title=f"lost: {cause}", how=lost_how, kind="share", optional=True)
                    for cause in CAUSES
                ),
            ),
            rows=rows,
        )
    )
    return [*blocks, *failures]


def _next(largest: Point | None, record: Opened) -> list[Block]:
    if largest is None or largest.efficiency is None:
        return []
    more = ["-n", str(largest.workers)]
    if largest.tied or largest.efficiency <= GOOD:
        return [
            CommandBlock(title="See where the time of a step goes", command=command(record, verb="profile", more=more))
        ]
    return [CommandBlock(title="Train so", command=command(record, verb="run", more=more))]
