"""The page of a verdict of `scale`, `sweep` or `tune`."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.trials.scale.series import Verdict as ScaleVerdict
from paceline.trials.sweep.search import Verdict as SweepVerdict
from paceline.trials.tune.verdict import Verdict as TuneVerdict
from paceline.view.pages.scale import scaling
from paceline.view.pages.sweep import sweeping
from paceline.view.pages.tune import tuning
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Page
from paceline.view.ui.run_parts import command, trials
from paceline.view.ui.verdicts import as_verdict

TITLES = {"scale": "Scaling", "sweep": "Sweep", "tune": "Tuning"}


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    verb = record.run.verb
    if verb == "scale":
        blocks = scaling(as_verdict(record, ScaleVerdict))
    elif verb == "sweep":
        blocks = sweeping(as_verdict(record, SweepVerdict))
    else:
        blocks = tuning(as_verdict(record, TuneVerdict), record)
    blocks += trials(record)
    return Page(title=TITLES[verb], lead=command(record), blocks=blocks)
