"""The page of a series of trials: its result, the trials as a table, and what was run.

A series that was killed has no verdict; its page shows the trials that ended.
"""

from __future__ import annotations

from paceline.errors import RecordError
from paceline.trials.bandwidth.verdict import Verdict as BandwidthVerdict
from paceline.trials.converge.series import Verdict as ConvergeVerdict
from paceline.trials.scale.series import Verdict as ScaleVerdict
from paceline.trials.sweep.search import Verdict as SweepVerdict
from paceline.trials.tune.verdict import Verdict as TuneVerdict
from paceline.view.pages.series.bandwidth import measuring
from paceline.view.pages.series.converge import converging
from paceline.view.pages.series.scale import scaling
from paceline.view.pages.series.sweep import sweeping
from paceline.view.pages.series.tune import tuning
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Page
from paceline.view.ui.trials import trials
from paceline.view.ui.verdicts import as_verdict
from paceline.view.ui.what_was_run import command, facts, outcome_notes

TITLES = {
    "scale": "Scaling",
    "sweep": "Batch sizes",
    "tune": "Tuning",
    "converge": "Large batches",
    "bandwidth": "Communication",
}


def build(record: Opened) -> Page:
    blocks = outcome_notes(record)
    try:
        blocks += _verdict(record)
    except RecordError as error:  # the trials can be shown all the same
        blocks.append(Note(text=error.message, advice=error.advice, tone="bad"))
    blocks += [*trials(record), facts(record)]
    return Page(title=TITLES[record.run.verb], lead=command(record), lead_is_command=True, blocks=blocks)


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
        case "tune":
            return tuning(as_verdict(record, TuneVerdict), record)
    raise RecordError(f"{record.name}: paceline view does not know the verb {record.run.verb}.")
