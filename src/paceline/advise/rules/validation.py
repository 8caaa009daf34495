"""Validation takes much of the time."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, percent

SHARE = 1 / 3  # share of the time of all steps: a forward pass over a test set of a fifth of the data is a tenth


def find(evidence: Evidence) -> Finding | None:
    """Calls in eval mode take more than a third of the time of all steps.

    Fixed by hand: validate less often, or on a part of the data; more workers also split validation. Predicted: half
    as often. Only a run that reaches its validation shows it: `paceline profile --to-the-end`.
    """
    steps = evidence.tables.steps.filter(pl.col("step") > 1)  # the first step includes the script's start-up
    total, spent = float(steps["total"].sum()), float(steps["evaluation"].sum())
    if not total or spent < SHARE * total:
        return None
    times = int((steps["evaluation"] > 0).sum()) // max(evidence.workers, 1)
    return Finding(
        rule="validation",
        title=f"{percent(spent / total)} of the time is validation, {times} times in {steps['step'].n_unique()} steps",
        evidence=[
            Figure("time in eval mode", spent / max(evidence.workers, 1), "s"),
            Figure("time of all steps", total / max(evidence.workers, 1), "s"),
            Figure("steps with validation before them", times),
        ],
        predicted_gain=total / (total - spent / 2),
        how="half as often",
        advice="Validate every other epoch, on a part of the set, or in larger batches under torch.inference_mode()",
    )
