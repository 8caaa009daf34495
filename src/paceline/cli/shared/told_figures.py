"""The figures of a run (`tables.figures`) as words and as JSON, the same for every verb."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.tables.figures import Figures
from paceline.units import percent, seconds


def spread_words(figures: Figures) -> str:
    """For the live line: `spread 5 % (slowest: rank 1)`. A rank that stands out is named. Empty for one worker."""
    slowest = figures.slowest
    if slowest is None:
        return ""
    return f"spread {percent(slowest.share)}" + (f" (slowest: rank {slowest.rank})" if slowest.slow else "")


def slowest_words(figures: Figures) -> str:
    """One line about the slowest worker, for a summary. Empty for one worker."""
    slowest = figures.slowest
    if slowest is None:
        return ""
    if not slowest.slow:
        return f"slowest worker: none is late all the time (spread {percent(slowest.share)} of a step)"
    return (
        f"slowest worker: rank {slowest.rank}, {seconds(slowest.behind)} a step behind the others\n"
        f"(spread {percent(slowest.share)} of a step; since step {slowest.since:,}, in {slowest.cause})"
    )


def figures_document(figures: Figures) -> dict[str, Any]:
    """The keys that `--json` of every verb has for the figures of a run."""
    slowest = figures.slowest
    is_counted = figures.samples_per_s > 0 or not figures.step_time  # else steps were timed, and samples not counted
    return {
        "warm_up": figures.warm_up,
        "step_time": figures.step_time,
        "samples_per_s": figures.samples_per_s if is_counted else None,
        "step": figures.measured,
        "check": figures.check,
        "spread": figures.spread,
        "slowest": {"rank": 0, "behind": 0.0} if slowest is None else msgspec.to_builtins(slowest),
        "loss": {"first": figures.first_loss, "last": figures.last_loss},
    }
