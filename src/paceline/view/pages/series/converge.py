"""The page of `converge`: accuracy and loss of each large-batch technique, with the spread over seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from paceline.charts.chart import Axis, Band, Chart, Line, Series
from paceline.errors import RecordError
from paceline.trials.converge import charts
from paceline.trials.converge.series import ALONE, Row, Verdict
from paceline.units import count, percent
from paceline.view.records.reading import read_tail
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, CommandBlock, Note, Tile, Tiles
from paceline.view.ui.critical_batch import critical_notes
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.what_was_run import command

STEPS = 8 << 20  # bytes of a trial's steps that are read for its losses: about 30,000 steps
HIGHEST = ("highest of one seed", "highest mean")
POINTS = 200  # of a loss curve: each is the mean over a stretch of steps, because single losses scatter


def converging(verdict: Verdict, record: Opened) -> list[Block]:
    rows = {row.technique: row for row in verdict.rows}
    best, alone = rows.get(verdict.chosen or next(iter(verdict.tied), "")), rows.get(ALONE)
    blocks: list[Block] = [Tiles(_tiles(verdict, best, alone))]
    if verdict.unfinished:
        blocks.append(Note(text="The budget ended before all trials were made.", tone="warn"))
    if verdict.tied:
        blocks.append(
            Note(
                text=f"{', '.join(verdict.tied)} overlap over {verdict.seeds} seeds: a tie. The first has the highest "
                "mean.",
                advice=f"More seeds may tell them apart: --seeds {2 * verdict.seeds}",
            )
        )
    elif verdict.seeds == 1:
        blocks.append(Note(text="One seed does not show how much of a difference is chance.", advice="--seeds 3"))
    if best is None or best.accuracy.mean is None:
        blocks.append(
            Note(
                text="No technique gave an accuracy.",
                advice="Print the accuracy in the script, or give its pattern: --metric 'acc: ([0-9.]+)'",
                tone="warn",
            )
        )
    elif real := best.on_real_workers():
        blocks.append(CommandBlock(title="Run it so, on real workers", command=command(record, verb="run", more=real)))
    blocks += [*charts.accuracy(verdict), *_losses(verdict, record), *charts.loss_lines(verdict)]
    blocks += critical_notes(record)
    blocks.append(_grid(verdict))
    blocks += [Note(text=f"{row.technique}: {row.trouble}", tone="warn") for row in verdict.rows if row.trouble][:20]
    for trouble in dict.fromkeys(row.sharpness.trouble for row in verdict.rows if row.sharpness):
        if trouble:
            named = [row.technique for row in verdict.rows if row.sharpness and row.sharpness.trouble == trouble]
            blocks.append(Note(text=f"Sharpness of {', '.join(named)}: {trouble}", tone="warn"))
    return blocks


def _tiles(verdict: Verdict, best: Row | None, alone: Row | None) -> list[Tile]:
    tiles = [
        Tile(
            label="emulated workers",
            value=f"{verdict.workers:,}",
            how="The batch is this many times the script's own; the workers are emulated on this machine.",
            detail=count(verdict.seeds, "seed"),
        )
    ]
    if best is not None and best.accuracy.mean is not None:
        tiles.append(
            Tile(
                label="best technique" if verdict.chosen and verdict.seeds > 1 else HIGHEST[verdict.seeds > 1],
                value=best.technique,
                how="The technique with the highest mean accuracy over seeds.",
                detail=f"{percent(best.accuracy.mean)} {_spread(best)}".strip(),
                tone="good" if verdict.proven else "",
            )
        )
    if alone is not None and alone.accuracy.mean is not None:
        tiles.append(
            Tile(
                label="one worker",
                value=percent(alone.accuracy.mean),
                how="Mean accuracy over seeds of the unmodified script.",
                detail=_spread(alone),
            )
        )
        if best is not None and best.accuracy.mean is not None:
            apart = (best.accuracy.mean - alone.accuracy.mean) * 100
            spread = max(_half(best), _half(alone)) * 100
            tiles.append(
                Tile(
                    label="against one worker",
                    value=f"{apart:+.1f} points",
                    how="Accuracy of the best technique minus accuracy of one worker, in percentage points. Within the "
                    "spread over seeds, the two cannot be told apart.",
                    detail="within the spread over seeds" if abs(apart) <= spread else "",
                    tone="warn" if apart < -spread else "good" if verdict.seeds > 1 else "",
                )
            )
    found = [row for row in verdict.rows if row.diverged is not None]
    if found:
        tiles.append(
            Tile(
                label="diverged",
                value=f"{len(found)} of {len(verdict.rows)}",
                how="Techniques with a seed whose loss was not finite.",
                detail=", ".join(row.technique for row in found[:3]),
                tone="warn",
            )
        )
    return tiles


def _half(row: Row) -> float:
    found = row.accuracy
    return (found.high - found.low) / 2 if found.low is not None and found.high is not None else 0.0


def _spread(row: Row) -> str:
    """Half the range over seeds."""
    return f"± {_half(row) * 100:.1f} points over {row.accuracy.seeds} seeds" if row.accuracy.seeds > 1 else ""


def _losses(verdict: Verdict, record: Opened) -> list[Block]:
    """The training loss by epoch, one line per technique: the mean over seeds, and a band from the lowest to the
    highest seed. Read from the trials' records, because the verdict has only accuracies."""
    by_row: dict[str, list[list[tuple[float, float]]]] = {}
    for name in record.trials:
        folder = name.rpartition("/")[2]
        row = next((row for row in verdict.rows if _is_trial_of(folder, row)), None)
        if row is None:
            continue
        try:
            steps, cut = read_tail(record.folder.folder("trials", folder).file("steps.rank0.jsonl"), STEPS)
        except RecordError:
            continue  # the trial's own page names the damaged file
        curve = _smooth([(float(step.step), step.loss) for step in steps if step.loss is not None])
        if curve and not cut:
            by_row.setdefault(row.technique, []).append(curve)
    series: list[Series] = []
    for number, row in enumerate(verdict.rows):
        curves = by_row.get(row.technique)
        if not curves:
            continue
        places = [column[0][0] for column in zip(*curves, strict=False)]
        columns = [[loss for _, loss in column] for column in zip(*curves, strict=False)]
        share = [place / max(curve[-1][0] for curve in curves) for place in places]
        colour = charts.COLOURS[number % len(charts.COLOURS)]
        series.append(
            Line(
                name=row.technique,
                x=share,
                y=[fmean(column) for column in columns],
                colour=colour,
                dash="dashed" if row.technique == ALONE else "solid",
                width=charts.THICK if row.technique == verdict.chosen else charts.THIN,
            )
        )
        lows, highs = [min(column) for column in columns], [max(column) for column in columns]
        if any(low < high for low, high in zip(lows, highs, strict=True)):
            series.append(Band(name=f"seeds of {row.technique}", x=share, low=lows, high=highs, colour=colour))
    if not series:
        return []
    return [
        Chart(
            name="losses",
            title="Training loss",
            caption="Loss of rank 0, as the script computed it: mean over neighbouring steps and over seeds. Bands: "
            "lowest and highest seed. All techniques see the same samples, in batches of different sizes, so the x "
            "axis is the share of the run.",
            x=Axis(title="share of the run", share=True),
            y=Axis(title="loss"),
            series=series,
        )
    ]


def _is_trial_of(folder: str, row: Row) -> bool:
    """Whether this is the folder of a trial of the row: `lr_scale+warmup.seed0`."""
    plain = re.sub(r"[^A-Za-z0-9._=+:,-]", "-", row.technique.replace(" ", ""))
    return re.fullmatch(re.escape(plain) + r"\.seed\d+(\.in\d+)?", folder) is not None


def _smooth(losses: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means over stretches of steps: at least eight stretches, at most POINTS."""
    size = max(1, min(len(losses) // 8, 16), -(-len(losses) // POINTS))
    parts = [losses[start : start + size] for start in range(0, len(losses) - size + 1, size)]
    return [(part[-1][0], fmean(loss for _, loss in part)) for part in parts]


def _grid(verdict: Verdict) -> Grid:
    radius = next((row.sharpness.radius for row in verdict.rows if row.sharpness), 0.0)
    rows: list[dict[str, Any]] = []
    for row in verdict.rows:
        measured, accuracy = row.sharpness, row.accuracy
        spread = ""
        if accuracy.seeds > 1 and accuracy.low is not None and accuracy.high is not None:
            spread = f"{percent(accuracy.low)} to {percent(accuracy.high)}"
        rows.append(
            {
                "technique": row.technique,
                "workers": row.workers,
                "accuracy": accuracy.mean,
                "spread": spread,
                "epochs": row.epochs_to_target,
                "seconds": row.seconds_to_target,
                "samples_per_s": row.samples_per_s or None,
                "diverged": row.diverged,
                "curvature": measured.eigenvalue if measured else None,
                "rise": measured.rise if measured else None,
                "mods": " ".join(mod for mod in row.mods if not mod.startswith("emulate=")),
                "chosen": row.technique == verdict.chosen,
            }
        )
    target = f"to {percent(verdict.target)}" if verdict.target is not None else "to the target"
    rough = [row.technique for row in verdict.rows if row.sharpness and not row.sharpness.settled]
    return Grid(
        name="techniques",
        title="Techniques",
        about=f"The iteration for the sharpness did not converge for {', '.join(rough)}: read it as a rough number."
        if rough
        else "",
        columns=(
            Column(key="technique", title="technique", how="Name of the technique, or the mods that were joined by +."),
            Column(key="workers", title="workers", how="Workers that were emulated.", kind="count", narrow=False),
            Column(key="accuracy", title="accuracy", how="Last accuracy of a run: mean over seeds.", kind="share"),
            Column(key="spread", title="over seeds", how="Accuracy of the lowest and of the highest seed."),
            Column(
                key="epochs",
                title=f"epochs {target}",
                how="Readings of the accuracy until the target: mean over seeds. Empty if a seed missed the target.",
                kind="number",
            ),
            Column(
                key="seconds",
                title=f"time {target}",
                how=f"Time until the target: mean over seeds. On this machine, not on {verdict.workers} workers.",
                kind="seconds",
            ),
            Column(key="samples_per_s", title="samples/s", how="Mean over seeds, on this machine.", kind="rate"),
            Column(
                key="diverged",
                title="diverged at",
                how="First step at which the loss of a seed was not finite.",
                kind="count",
            ),
            Column(
                key="curvature",
                title="sharpness",
                how="Largest eigenvalue of the loss's Hessian at the solution: mean over seeds. Small means flat.",
                kind="number",
            ),
            Column(
                key="rise",
                title="loss rises by",
                how=f"Rise of the loss with each weight tensor perturbed by {percent(radius, digits=0)} of its norm: "
                "mean over seeds.",
                kind="number",
            ),
            Column(key="mods", title="mods", how="Mods of the technique, as --mod takes them.", wrap=True),
        ),
        rows=rows,
        mark="chosen" if verdict.proven else "",
        good=True,
    )
