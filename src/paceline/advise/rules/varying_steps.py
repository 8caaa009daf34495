"""Steps vary."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import percent
from paceline.record.phases import PHASES
from paceline.units import seconds

WORTH = 1.05  # the mean step, by the median one: what would be gained if all were like that
FEWEST = 10  # steps that say something about how they vary
LONG = 1.2  # times the median: a step that took so long is a long one
WHY = {
    "data": "loading: batches that take longer to make; load ahead, and more of it (--mod loader=4:8)",
    "communication": "waiting for other workers: see whether one of them comes late",
    "forward": "forward: shapes that change, or something else on the machine; fix the shapes, or pad them to a few",
    "backward": "backward: shapes that change, or something else on the machine; fix the shapes, or pad them to a few",
    "optimizer": "the optimizer's step",
    "other": "what the script does beside the model: logging, saving, plotting; do less of it, or in a thread",
    "": "parts that the record does not split",
}


def find(evidence: Evidence) -> Finding | None:
    """Some steps take much longer than others of as many samples.

    Mended by hand, by what makes them long: the part that grows most in long steps is named. Predicted: all steps are
    like the median one.
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
        f"usual one {seconds(usual)}: it is {part or 'not known what'} that grows",
        evidence=[
            Figure("median step", usual, "s"),
            Figure("mean step", mean, "s"),
            Figure("longest step", number(steps["total"].max()), "s"),
            Figure("long steps", long.height),
            Figure("steps", steps.height),
            Figure("what grows", part or "not known"),
            Figure("long steps, the first five", ", ".join(map(str, sorted(set(long["step"].to_list()))[:5]))),
        ],
        predicted_gain=mean / usual,
        how="all steps are like the median one",
        advice=f"See what makes them long — {WHY[part]}",
    )


def _part(steps: pl.DataFrame, long: pl.DataFrame) -> str:
    """The part that is most longer in long steps than usual; empty where none was split."""
    usual, odd = steps.filter("split"), long.filter("split")
    if not odd.height:
        return ""
    more = {part: number(odd[part].mean()) - number(usual[part].median()) for part in PHASES}
    return max(more, key=lambda part: more[part])
