"""How much communication was hidden under compute."""

from __future__ import annotations

import polars as pl

from paceline.tables.timeline import work
from paceline.tables.trace.columns import Trace


def overlap(trace: Trace) -> pl.DataFrame:
    """One row per device, over the whole trace: rank, device, communication = hidden + exposed (seconds), share (of
    communication that was hidden; null without communication)."""
    rows = []
    for each in work(trace):
        total, hidden = each.communication.length, (each.communication & each.compute).length
        share = hidden / total if total else None
        rows.append((trace.rank, each.device, total / 1e9, hidden / 1e9, (total - hidden) / 1e9, share))
    schema = {"rank": pl.Int64, "device": pl.Int64, "communication": pl.Float64, "hidden": pl.Float64}
    return pl.DataFrame(rows, schema={**schema, "exposed": pl.Float64, "share": pl.Float64}, orient="row")
