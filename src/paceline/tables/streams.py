"""The gaps on each stream of a device: caused by a late host, or by the device?

`timeline` says why a device as a whole was idle, which answers most questions; this table has one row per stream, as in
HolisticTraceAnalysis.
"""

from __future__ import annotations

import polars as pl

from paceline.tables.timeline import launch_times
from paceline.tables.trace.columns import Trace

SHORT = 10_000  # nanoseconds between two kernels of a stream that still count as back to back


def streams(trace: Trace, *, short: int = SHORT) -> pl.DataFrame:
    """One row per stream: rank, device, stream, events, busy, idle (seconds) = host (launched after the previous event
    had ended) + back_to_back (launched before that, gap below `short`) + other (launched before that, longer gap)."""
    rows = trace.device
    gap = pl.col("start") - pl.col("before")
    late = pl.col("launched") > pl.col("before")
    return (
        rows.with_columns(pl.Series("launched", launch_times(trace, rows)))
        .sort("device", "stream", "start", maintain_order=True)
        .with_columns(before=pl.col("end").shift(1).over("device", "stream"))
        .with_columns(gap=gap.fill_null(0))
        .group_by("device", "stream")
        .agg(
            events=pl.len().cast(pl.Int64),
            busy=(pl.col("end") - pl.col("start")).sum() / 1e9,
            idle=pl.col("gap").sum() / 1e9,
            host=pl.col("gap").filter(late).sum() / 1e9,
            back_to_back=pl.col("gap").filter(~late & (pl.col("gap") < short)).sum() / 1e9,
            other=pl.col("gap").filter(~late & (pl.col("gap") >= short)).sum() / 1e9,
        )
        .sort("device", "stream")
        .select(pl.lit(trace.rank, dtype=pl.Int64).alias("rank"), pl.all())
        .cast({"device": pl.Int64, "stream": pl.Int64})
    )
