"""Launch statistics: whether small kernels make launching the bottleneck."""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.tables.timeline import timeline
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.steps import covered, windows

SMALL = 10_000  # nanoseconds: a launch takes the host 4 to 10 µs, so shorter kernels leave the device waiting


def launches(trace: Trace) -> pl.DataFrame:
    """One row per device, over its steps: rank, device, steps, kernels (per step), median (seconds per kernel), small
    (share of kernels below 10 µs), small_time (share of kernel time in them), launch (host seconds per launch), late
    (share of wall time in which the device was idle because the host was late)."""
    inside, steps = covered(trace), windows(trace).height
    rows = trace.device.filter(pl.col("kind") == "kernel")
    launched = trace.launch_times(rows)
    begun = np.where(launched >= 0, launched, rows["start"].to_numpy())
    rows = rows.filter(pl.Series(inside.covered(begun), dtype=pl.Boolean))
    cost = _cost(trace)
    idle = timeline(trace).group_by("device").agg(late=pl.col("idle_host").sum() / pl.col("wall").sum())
    length = pl.col("end") - pl.col("start")
    return (
        rows.group_by("device")
        .agg(
            kernels=pl.len() / max(steps, 1),
            median=length.median() / 1e9,
            small=(length < SMALL).mean(),
            small_time=length.filter(length < SMALL).sum() / length.sum(),
        )
        .with_columns(pl.col("device").cast(pl.Int64), launch=pl.lit(cost))
        .join(idle, on="device", how="left")
        .sort("device")
        .select(
            pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
            "device",
            pl.lit(steps, dtype=pl.Int64).alias("steps"),
            *("kernels", "median", "small", "small_time", "launch", "late"),
        )
    )


def _cost(trace: Trace) -> float:
    """Host seconds per launch: the median, because some launches wait for space in the queue."""
    calls = trace.host.filter(
        (pl.col("kind") == "runtime") & pl.col("name").cast(pl.String).str.contains("LaunchKernel")
    )
    length = (calls["end"] - calls["start"]).to_numpy()
    return float(np.median(length)) / 1e9 if len(length) else 0.0
