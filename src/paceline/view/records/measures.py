"""The figures of an opened record: those that `paceline run` prints."""

from __future__ import annotations

from paceline.tables.figures import Figures, columns_in, figures, kept_figures
from paceline.view.records.record import Opened


def measure(record: Opened) -> Figures:
    """See `tables.figures`: the only place that computes step time, samples/s and the slowest worker."""
    return kept_figures(record.folder) or figures(columns_in(record.steps.frame))
