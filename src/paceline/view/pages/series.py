"""The page of a series of trials: the report of its verb, the trials as a table, and what was run.

A series that was killed has no verdict; its page shows the trials that ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from paceline.errors import RecordError
from paceline.reports import bandwidth, converge, fit, plan, scale, sweep, tune
from paceline.reports.converge import Curve
from paceline.reports.report import Command, Report, Sentence
from paceline.reports.verdicts import VERBS
from paceline.trials.converge.series import Row, Verdict
from paceline.trials.tune.patch import BY_HAND, ByHand
from paceline.view.records.headline import headline
from paceline.view.records.reading import read_tail
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page, Tiles, VerdictBlock
from paceline.view.ui.critical_batch import critical_notes
from paceline.view.ui.grid import Grid
from paceline.view.ui.trials import trials
from paceline.view.ui.what_was_run import command, facts, outcome_notes

LONGEST = 400  # characters of the first sentence
PATCH = 256 << 10  # bytes of tuned.patch


def build(record: Opened) -> Page:
    blocks = outcome_notes(record)
    try:
        blocks += _verdict(record)
    except RecordError as error:  # the trials can be shown all the same
        blocks.append(Sentence(error.message, "bad", error.advice))
    blocks = [*_first(record, blocks), *trials(record), facts(record)]
    what = "" if record.run.verb == "bandwidth" else f" of {Path(record.run.script).name}"
    title = record.labels.name or VERBS[record.run.verb].title + what
    return Page(title=title, lead=command(record), lead_is_command=True, blocks=blocks)


def _first(record: Opened, blocks: list[Block]) -> list[Block]:
    """The result in a sentence, with the command that follows from it, before everything else."""
    said = headline(record.run, record.folder, longest=LONGEST)
    if not said:
        return blocks
    typed = next((block for block in blocks if isinstance(block, Command)), None)
    failed = record.state == "failed"
    sentence = f"Failed: {said}" if failed else said[:1].upper() + said[1:]
    first = VerdictBlock(
        sentence=sentence.rstrip(".") + ".",
        command=typed.command if typed else "",
        about=typed.title if typed else "",
        tone="bad" if failed else "",
    )
    repeats = [block for block in blocks if isinstance(block, Sentence) and not block.code]
    repeats = [block for block in repeats if block.text.startswith(said)]
    return [first, *(block for block in blocks if block is not typed and block not in repeats)]


def _verdict(record: Opened) -> list[Block]:
    if not record.folder.file("verdict.json").exists():
        running = record.state == "running"
        text = "This series is in progress." if running else "This series wrote no verdict."
        return [Sentence(text, "live" if running else "warn")]
    verb = record.run.verb
    try:
        verdict = VERBS[verb].read(record.verdict)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(f"{record.folder.file('verdict.json')} is not a verdict of {verb}: {error}.") from error
    return blocks_of(report_of(verdict, record))


def report_of(verdict: Any, record: Opened) -> Report:
    match record.run.verb:
        case "scale":
            return scale.report(verdict, record.run)
        case "sweep":
            return sweep.report(verdict, record.run)
        case "converge":
            notes = critical_notes(record)
            return converge.report(verdict, record.run, losses=losses(verdict, record), notes=notes)
        case "bandwidth":
            return bandwidth.report(verdict)
        case "plan":
            return plan.report(verdict)
        case "fit":
            return fit.report(verdict)
    patch, by_hand, troubles = _rewritten(record)
    path = record.folder.file("tuned.patch")
    return tune.report(verdict, run=record.run, patch=patch, path=str(path), by_hand=by_hand, troubles=troubles)


def blocks_of(report: Report) -> list[Block]:
    """The page of a report. The figures that a person looks for come first."""
    figures = sorted(report.figures, key=lambda figure: not figure.large)
    tables = [Grid.of(table) for table in report.tables if table.on != "terminal"]
    return [*([Tiles(figures)] if figures else []), *report.said, *report.charts, *tables, *report.after]


def _rewritten(record: Opened) -> tuple[str, Sequence[ByHand], list[Sentence]]:
    """The patch of the script, the lines that replace the mods that are not in it, and what cannot be read."""
    patch, by_hand, troubles = "", [], []
    try:
        patch = record.folder.file("tuned.patch").read(PATCH).decode(errors="replace")
    except OSError:
        pass
    except RecordError as error:
        troubles.append(Sentence(error.message, "bad", error.advice))
    try:
        by_hand = msgspec.json.decode(record.folder.file(BY_HAND).read(PATCH), type=list[ByHand])
    except FileNotFoundError:
        pass
    except (OSError, RecordError, msgspec.DecodeError, RecursionError) as error:
        troubles.append(Sentence(f"{record.folder.file(BY_HAND)} cannot be read: {error}.", "bad"))
    return patch, by_hand, troubles


# -- converge ---------------------------------------------------------------------------------------------------------


STEPS = 8 << 20  # bytes of a trial's steps that are read for its losses: about 30,000 steps
POINTS = 200  # of a loss curve: each is the mean over a stretch of steps, because single losses scatter


def losses(verdict: Verdict, record: Opened) -> dict[str, list[Curve]]:
    """By technique, the training loss of each seed."""
    found: dict[str, list[Curve]] = {}
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
            found.setdefault(row.technique, []).append(curve)
    return found


def _is_trial_of(folder: str, row: Row) -> bool:
    """Whether this is the folder of a trial of the row: `lr_scale+warmup.seed0`."""
    plain = re.sub(r"[^A-Za-z0-9._=+:,-]", "-", row.technique.replace(" ", ""))
    return re.fullmatch(re.escape(plain) + r"\.seed\d+(\.in\d+)?", folder) is not None


def _smooth(losses: Sequence[tuple[float, float]]) -> Curve:
    """Means over stretches of steps: at least eight stretches, at most POINTS."""
    size = max(1, min(len(losses) // 8, 16), -(-len(losses) // POINTS))
    parts = [losses[start : start + size] for start in range(0, len(losses) - size + 1, size)]
    return [(part[-1][0], fmean(loss for _, loss in part)) for part in parts]
