"""The summary of one run: its figures, and how it ran.

`run` prints a summary at its end; `scale` makes one of each trial.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.record import read_run
from paceline.tables.figures import Figures, keep_figures


class Summary(Figures, kw_only=True, frozen=True):
    """One run in numbers: the figures (`tables.figures`), and what the launcher recorded."""

    workers: int
    view: str
    strategy: str
    mods: list[str]
    seconds: float  # from the launch to the end of the last worker
    exit_code: int


def summarize(folder: Path) -> Summary:
    """Reads the record of a finished or killed run, and keeps its figures there."""
    run = read_run(folder)
    outcome = run.outcome
    return Summary(
        **msgspec.structs.asdict(keep_figures(folder)),
        workers=len(run.workers),
        view=outcome.view if outcome else "",
        strategy=run.strategy,
        mods=run.mods,
        seconds=outcome.seconds if outcome else 0.0,
        exit_code=outcome.exit_code if outcome else 1,
    )
