"""The page of `tune`: the gain of each mod, and of all kept mods together."""

from __future__ import annotations

import msgspec

from paceline.errors import RecordError
from paceline.trials.tune.candidates import settings_of
from paceline.trials.tune.charts import charts
from paceline.trials.tune.patch import BY_HAND, ByHand
from paceline.trials.tune.trials import NOISY
from paceline.trials.tune.verdict import Known, Verdict
from paceline.units import percent, rate, size
from paceline.view.records.record import Opened
from paceline.view.records.wording import say
from paceline.view.ui.blocks import Block, CommandBlock, Note, Text, Tile, Tiles
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.what_was_run import command

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
    if verdict.final and verdict.final.mods:
        final = verdict.final
        tiles += [
            Tile(
                label="tuned",
                value=rate(final.samples_per_s),
                how="samples/s with all kept mods.",
                detail=", ".join(final.mods),
                tone="good",
                large=True,
            ),
            Tile(
                label="gain",
                value=say(final.gain, "times"),
                how="Speed with all kept mods divided by the unmodified script's, in paired trials at the end.",
                detail=f"{say(final.gain_low, 'times')} to {say(final.gain_high, 'times')}, {final.pairs} pairs",
                tone="good" if final.gain > 1.01 else "",
                large=True,
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
    tiles.sort(key=lambda tile: not tile.large)
    blocks: list[Block] = [Tiles(tiles)]
    if verdict.problem:
        blocks.append(Note(text=verdict.problem, tone="bad"))
    if verdict.cut_short:
        blocks.append(Note(text="The budget ended before all mods were tried.", tone="warn"))
    blocks += _run_it_so(verdict, record)
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
                    title="loss differs by",
                    how="Relative difference of the losses in the loss guard.",
                    kind="share",
                ),
                Column(key="reason", title="why", how="Why the mod was kept, not kept, or not tried.", wrap=True),
                Column(key="on", title="tried on", how="Mods that were active without this mod."),
            ),
            rows=[msgspec.to_builtins(row) for row in verdict.mods],
            mark="kept",
            good=True,
        )
    )
    blocks += [Note(text=note) for note in verdict.notes[:20]]
    return [*blocks, *_patch(record), *_by_hand(record)]


def _patch(record: Opened) -> list[Block]:
    try:
        text = record.folder.file("tuned.patch").read(PATCH).decode(errors="replace")
    except OSError:
        return []
    except RecordError as error:
        return [Note(text=error.message, tone="bad", advice=error.advice)]
    about = f"Apply it in the script's folder: patch -p0 < {record.folder.file('tuned.patch')}"
    return [Text(title="Or change the script", text=text, diff=True, about=about)] if text.strip() else []


def _run_it_so(verdict: Verdict, record: Opened) -> list[Block]:
    final = verdict.final
    if final is None:
        return []
    if not final.mods:
        told = verdict.conclusion
        known = told.known is Known.NO_GAIN
        return [
            Note(
                text=f"{told.sentence[:1].upper()}{told.sentence[1:]}.",
                tone="warn" if not known else "good" if verdict.noise < NOISY else "",
                advice="" if known else "Allow more time: --budget 15m",
            )
        ]
    mods, changes = settings_of(final.mods)
    more = [word for name, value in changes.items() for word in (f"--{name}", str(value))]
    return [CommandBlock(title="Run it so", command=command(record, verb="run", more=more, mods=mods))]


def _by_hand(record: Opened) -> list[Block]:
    """The lines that replace the mods that are not in the patch."""
    try:
        data = record.folder.file(BY_HAND).read(PATCH)
        found = msgspec.json.decode(data, type=list[ByHand])
    except FileNotFoundError:
        return []
    except (OSError, RecordError, msgspec.DecodeError, RecursionError) as error:
        return [Note(text=f"{record.folder.file(BY_HAND)} cannot be read: {error}.", tone="bad")]
    return [Text(title=f"By hand: {one.mod}", text=one.lines) for one in found if one.lines]
