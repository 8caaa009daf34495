"""The page of `tune`: the gain of each mod, and of all kept mods together."""

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


def tuning(verdict: Verdict, record: Opened) -> list[Block]:
    tiles = []
    if verdict.baseline:
        tiles.append(
            Tile(
                label="as it is",
                value=rate(verdict.baseline.samples_per_s),
                how="samples/s of the unmodified script: mean over its trials.",
                detail=f"{verdict.baseline.trials} trials",
            )
        )
    if verdict.final:
        final = verdict.final
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
                how="Speed with all kept mods divided by the unmodified script's, in paired trials at the end.",
                detail=f"{say(final.gain_low, 'times')} to {say(final.gain_high, 'times')}, {final.pairs} pairs",
                tone="good" if final.gain > 1.01 else "",
            ),
            Tile(label="memory", value=size(final.memory), how="Peak memory of a worker with all kept mods."),
        ]
    tiles.append(
        Tile(
            label="noise",
            value=percent(verdict.noise),
            how="Relative standard deviation of one trial's speed.",
            detail=f"{verdict.trials} trials, {say(verdict.spent, 'seconds')}",
        )
    )
    blocks: list[Block] = [Tiles(tiles)]
    if verdict.problem:
        blocks.append(Note(text=verdict.problem, tone="bad"))
    if verdict.cut_short:
        blocks.append(Note(text="The budget ended before all mods were tried.", tone="warn"))
    blocks += charts(verdict)
    blocks.append(
        Grid(
            name="mods",
            title="Mods",
            columns=(
                Column(key="mod", title="mod", how="Mod, as --mod takes it."),
                Column(
                    key="kept",
                    title="kept",
                    how="Whether the gain exceeds the noise and the loss guard passes.",
                    kind="flag",
                ),
                Column(key="gain", title="gain", how="after divided by before.", kind="times"),
                Column(
                    key="before",
                    title="before",
                    how="samples/s of the mods in “tried on”, without this mod.",
                    kind="rate",
                ),
                Column(key="after", title="after", how="samples/s with this mod.", kind="rate"),
                Column(
                    key="loss_difference",
                    title="loss differs",
                    how="Difference of the losses in the loss guard.",
                    kind="number",
                ),
                Column(key="reason", title="why", how="Why the mod was not kept, or not tried."),
                Column(key="on", title="tried on", how="Mods that were active without this mod."),
            ),
            rows=[msgspec.to_builtins(row) for row in verdict.mods],
            mark="kept",
            good=True,
        )
    )
    blocks += [Note(text=note) for note in verdict.notes[:20]]
    return [*blocks, *_patch(record)]


def _patch(record: Opened) -> list[Block]:
    try:
        text = record.folder.file("tuned.patch").read(PATCH).decode(errors="replace")
    except OSError:
        return []
    except RecordError as error:
        return [Note(text=error.message, tone="bad", advice=error.advice)]
    return [Text(title="The kept mods as a patch", text=text)] if text else []
