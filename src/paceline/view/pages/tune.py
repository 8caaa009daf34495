"""What `tune` found: each mod's gain, and what all kept ones give together."""

from __future__ import annotations

import msgspec

from paceline.errors import RecordError
from paceline.trials.tune.charts import charts
from paceline.trials.tune.verdict import Verdict
from paceline.units import percent, rate, size
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Text, Tile, Tiles
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.wording import say

PATCH = 256 << 10  # bytes of tuned.patch


def tuning(told: Verdict, record: Opened) -> list[Block]:
    tiles = []
    if told.baseline:
        tiles.append(
            Tile(
                label="as it is",
                value=rate(told.baseline.samples_per_s),
                how="samples/s of the unmodified script: mean over its trials.",
                detail=f"{told.baseline.trials} trials",
            )
        )
    if told.final:
        final = told.final
        tiles += [
            Tile(
                label="tuned",
                value=rate(final.samples_per_s),
                how="samples/s with all kept mods.",
                detail=", ".join(final.mods) or "no mod helps",
                tone="good" if final.mods else "",
            ),
            Tile(
                label="gain",
                value=say(final.gain, "times"),
                how="Kept mods against the script as it is, in pairs at the end.",
                detail=f"{say(final.gain_low, 'times')} to {say(final.gain_high, 'times')}, {final.pairs} pairs",
                tone="good" if final.gain > 1.01 else "",
            ),
            Tile(label="memory", value=size(final.memory), how="The peak of a worker, with all kept mods."),
        ]
    tiles.append(
        Tile(
            label="noise",
            value=percent(told.noise),
            how="Relative standard deviation of one trial's speed.",
            detail=f"{told.trials} trials, {say(told.spent, 'seconds')}",
        )
    )
    blocks: list[Block] = [Tiles(tiles)]
    if told.problem:
        blocks.append(Note(text=told.problem, tone="bad"))
    if told.cut_short:
        blocks.append(Note(text="The budget was over before everything had been tried.", tone="warn"))
    blocks += charts(told)
    blocks.append(
        Grid(
            name="mods",
            title="Mods",
            columns=(
                Column(key="mod", title="mod", how="As --mod takes it."),
                Column(key="kept", title="kept", how="Faster than the noise, and the loss is kept.", kind="flag"),
                Column(key="gain", title="gain", how="after by before.", kind="times"),
                Column(
                    key="before", title="before", how="samples/s of the best set that it was tried on.", kind="rate"
                ),
                Column(key="after", title="after", how="samples/s with it.", kind="rate"),
                Column(
                    key="loss_difference", title="loss differs", how="From the guard's series of losses.", kind="number"
                ),
                Column(key="reason", title="why", how="Why it was not kept, or not tried."),
                Column(key="on", title="tried on", how="The mods that were on at that time."),
            ),
            rows=[msgspec.to_builtins(row) for row in told.mods],
            mark="kept",
            good=True,
        )
    )
    blocks += [Note(text=note) for note in told.notes[:20]]
    return [*blocks, *_patch(record)]


def _patch(record: Opened) -> list[Block]:
    try:
        text = record.folder.file("tuned.patch").read(PATCH).decode(errors="replace")
    except OSError:
        return []
    except RecordError as error:
        return [Note(text=error.message, tone="bad", advice=error.advice)]
    return [Text(title="The kept mods as a patch", text=text)] if text else []
