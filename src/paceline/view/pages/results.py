"""What a series of trials found."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.trials.scale import series as scale
from paceline.trials.sweep import search as sweep
from paceline.trials.tune import verdict as tune_verdict
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
        blocks = scaling(as_verdict(record, scale.Verdict))
    elif verb == "sweep":
        blocks = sweeping(as_verdict(record, sweep.Verdict))
    else:
        blocks = tuning(as_verdict(record, tune_verdict.Verdict), record)
    blocks += trials(record)
    return Page(title=TITLES[verb], lead=command(record), blocks=blocks)
