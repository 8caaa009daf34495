"""The page of a series of trials: its result, the trials as a table, and what was run.

A series that was killed has no verdict; its page shows the trials that ended.
"""

from __future__ import annotations

from pathlib import Path

from paceline.errors import RecordError
from paceline.plan.plan import Plan
from paceline.trials.bandwidth.verdict import Verdict as BandwidthVerdict
from paceline.trials.converge.series import Verdict as ConvergeVerdict
from paceline.trials.scale.series import Verdict as ScaleVerdict
from paceline.trials.sweep.search import Verdict as SweepVerdict
from paceline.trials.tune.verdict import Verdict as TuneVerdict
from paceline.view.pages.series.bandwidth import measuring
from paceline.view.pages.series.converge import converging
from paceline.view.pages.series.plan import planning
from paceline.view.pages.series.scale import scaling
from paceline.view.pages.series.sweep import sweeping
from paceline.view.pages.series.tune import tuning
from paceline.view.records.headline import headline
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, CommandBlock, Note, Page, VerdictBlock
from paceline.view.ui.trials import trials
from paceline.view.ui.verdicts import as_verdict
from paceline.view.ui.what_was_run import command, facts, outcome_notes

LONGEST = 400  # characters of the first sentence
TITLES = {
    "scale": "Scaling",
    "sweep": "Batch sizes",
    "tune": "Tuning",
    "converge": "Large batches",
    "bandwidth": "Communication",
    "plan": "Plan",
}


def build(record: Opened) -> Page:
    blocks = outcome_notes(record)
    try:
        blocks += _verdict(record)
    except RecordError as error:  # the trials can be shown all the same
        blocks.append(Note(text=error.message, advice=error.advice, tone="bad"))
    blocks = [*_first(record, blocks), *trials(record), facts(record)]
    what = "" if record.run.verb == "bandwidth" else f" of {Path(record.run.script).name}"
    title = record.labels.name or TITLES[record.run.verb] + what
    return Page(title=title, lead=command(record), lead_is_command=True, blocks=blocks)


def _first(record: Opened, blocks: list[Block]) -> list[Block]:
    """The result in a sentence, with the command that follows from it, before everything else."""
    said = headline(record.run, record.folder, longest=LONGEST)
    if not said:
        return blocks
    typed = next((block for block in blocks if isinstance(block, CommandBlock)), None)
    failed = record.state == "failed"
    sentence = f"Failed: {said}" if failed else said[:1].upper() + said[1:]
    first = VerdictBlock(
        sentence=sentence.rstrip(".") + ".",
        command=typed.command if typed else "",
        about=typed.title if typed else "",
        tone="bad" if failed else "",
    )
    repeats = [block for block in blocks if isinstance(block, Note) and not block.code and block.text.startswith(said)]
    return [first, *(block for block in blocks if block is not typed and block not in repeats)]


def _verdict(record: Opened) -> list[Block]:
    if not record.folder.file("verdict.json").exists():
        running = record.state == "running"
        text = "This series is in progress." if running else "This series wrote no verdict."
        return [Note(text=text, tone="live" if running else "warn")]
    match record.run.verb:
        case "scale":
            return scaling(as_verdict(record, ScaleVerdict), record)
        case "sweep":
            return sweeping(as_verdict(record, SweepVerdict), record)
        case "converge":
            return converging(as_verdict(record, ConvergeVerdict), record)
        case "bandwidth":
            return measuring(as_verdict(record, BandwidthVerdict))
        case "plan":
            return planning(as_verdict(record, Plan))
        case "tune":
            return tuning(as_verdict(record, TuneVerdict), record)
    raise RecordError(f"{record.name}: paceline view does not know the verb {record.run.verb}.")
