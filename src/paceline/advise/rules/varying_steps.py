"""Steps vary."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding, percent
from paceline.record.phases import PHASES
from paceline.units import seconds

WORTH = 1.05  # mean step divided by median step: the gain if all steps were like the median one
FEWEST = 10  # steps, for a statement about their variation
LONG = 1.2  # times the median: a longer step counts as long
WHY = {
    "data": "loading: some batches take longer to make; load ahead, with more processes (--mod loader=4:8)",
    "communication": "waiting for other workers: see whether one of them is late",
    "forward": "forward: changing shapes, or other programs on the machine; fix the shapes, or pad them to a few",
    "backward": "backward: changing shapes, or other programs on the machine; fix the shapes, or pad them to a few",
    "optimizer": "the optimizer's step",
    "other": "code of the script outside the model: logging, saving, plotting; do it less often, or in a thread",
    "": "changing shapes, waiting for other workers, loading, saving, or other programs on the machine",
}


def find(evidence: Evidence) -> Finding | None:
    """Some steps take much longer than others with the same number of samples.

    Fixed by hand: the finding names the phase that grows most in long steps. Predicted: all steps are like the median
    one.
    """
    steps = evidence.settled.filter(pl.col("samples") == evidence.batch) if evidence.settled.height else None
    if steps is None or steps.height < FEWEST:
        return None
    usual, mean = number(steps["total"].median()), number(steps["total"].mean())
    long = steps.filter(pl.col("total") > LONG * usual)
    if not usual or mean < WORTH * usual or long.height < 2:
        return None
    part = _part(steps, long)
    return Finding(
        rule="varying_steps",
        title=f"{percent(long.height / steps.height)} of the steps take {seconds(number(long['total'].mean()))}, the "
        f"median step {seconds(usual)}" + (f": {part} grows" if part else ""),
        evidence=[
            Figure("median step", usual, "s"),
            Figure("mean step", mean, "s"),
            Figure("longest step", number(steps["total"].max()), "s"),
            Figure("long steps", long.height),
            Figure("steps", steps.height),
            Figure("phase that grows", part or "not measured"),
            Figure("long steps, the first five", ", ".join(map(str, sorted(set(long["step"].to_list()))[:5]))),
        ],
        predicted_gain=mean / usual,
        how="all steps are like the median one",
        advice=f"Find out what makes them long — {WHY[part]}",
    )


def _part(steps: pl.DataFrame, long: pl.DataFrame) -> str:
    """The phase that grows most in long steps; empty if no step was split."""
    usual, odd = steps.filter("split"), long.filter("split")
    if not odd.height:
        return ""
    more = {part: number(odd[part].mean()) - number(usual[part].median()) for part in PHASES}
    return max(more, key=lambda part: more[part])
