"""How long a step waits for its input."""

from __future__ import annotations

import polars as pl

from paceline.tables.timeline import timeline
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.steps import waiting_for_input, windows


def input_wait(trace: Trace) -> pl.DataFrame:
    """One row per step: rank, step, wall, wait (the script waited for its loader), idle (the part of wait in which a
    device was idle; equal to wait without a device), share (idle / wall). Seconds."""
    steps = windows(trace)
    waited = waiting_for_input(trace).length_within(steps["start"].to_numpy(), steps["end"].to_numpy()) / 1e9
    table = steps.select(
        pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
        "step",
        ((pl.col("end") - pl.col("start")) / 1e9).alias("wall"),
        pl.Series("wait", waited),
    )
    if trace.has_device:
        # Of several devices, the one that waits longest counts.
        idle = timeline(trace).group_by("step").agg(idle=pl.col("idle_input").max())
        table = table.join(idle, on="step", how="left", maintain_order="left")
    else:
        table = table.with_columns(idle=pl.col("wait"))
    return table.with_columns(share=(pl.col("idle") / pl.col("wall")).fill_nan(0.0))
