"""The figures of a run (`tables.figures`) as words and as JSON, the same for every verb."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.reports.report import Figure, Tone
from paceline.tables.figures import Figures
from paceline.units import percent, seconds

EVEN = 0.1  # share of a step: workers that differ by less are called even
SLOWEST = (
    "A worker's own time is its step time without the time spent waiting for other workers. A worker counts as slow if "
    "its own time is more than 5 % of a step above the median of the other workers, in most steps until the end, and "
    "the delay is beyond the scatter of these steps."
)


def spread_words(figures: Figures) -> str:
    """For the live line: `spread 5 % (slowest: rank 1)`. A rank that stands out is named. Empty for one worker."""
    slowest = figures.slowest
    if slowest is None:
        return ""
    return f"spread {percent(slowest.share)}" + (f" (slowest: rank {slowest.rank})" if slowest.slow else "")


def slowest(figures: Figures) -> list[Figure]:
    """The slowest worker. Empty for one worker."""
    first = figures.slowest
    if first is None:
        return []
    name, spread = "slowest worker", f"spread {percent(first.share)} of a step"
    if not first.slow:
        none = "none is late all the time"
        tone: Tone = "good" if first.share < EVEN else ""
        return [Figure(name, "none", SLOWEST, f"{none}: {spread}", tone, said=f"{name}: {none} ({spread})")]
    rank, since = f"rank {first.rank}", f"since step {first.since:,}, in {first.cause}"
    behind = f"{seconds(first.behind)} a step behind the others"
    said = f"{name}: {rank}, {behind}\n({spread}; {since})"
    return [Figure(name, rank, SLOWEST, f"{behind}, {since}: {spread}", "warn", said=said)]


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
