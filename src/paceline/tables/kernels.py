"""The kernels that a device ran, and the ops that launched them."""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.tables.timeline import timeline
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.kinds import of_communication, uses_tensor_cores
from paceline.tables.trace.nesting import owners
from paceline.tables.trace.steps import covered, windows


def kernels(trace: Trace) -> pl.DataFrame:
    """One row per kernel, most time first: rank, name, kind (compute, communication, copy, set), calls, total, mean,
    median, low, high (seconds), share (of all device time), tensor_cores, bytes (copied or sent; null if the trace does
    not say)."""
    rows = _classified(trace)
    return (
        rows.group_by("name", "kind", "tensor_cores")
        .agg(
            calls=pl.len().cast(pl.Int64),
            total=pl.col("seconds").sum(),
            mean=pl.col("seconds").mean(),
            median=pl.col("seconds").median(),
            low=pl.col("seconds").min(),
            high=pl.col("seconds").max(),
            bytes=pl.when((pl.col("bytes") >= 0).any()).then(pl.col("bytes").filter(pl.col("bytes") >= 0).sum()),
        )
        .with_columns(
            pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
            (pl.col("total") / pl.col("total").sum()).alias("share"),
        )
        .sort(["total", "name"], descending=[True, False])
        .select(
            "rank", "name", "kind", "calls", "total", "mean", "median", "low", "high", "share", "tensor_cores", "bytes"
        )
    )


def kernels_by_op(trace: Trace) -> pl.DataFrame:
    """One row per pair of op and kernel, most time first: rank, op (empty if the trace does not say), kernel, kind,
    calls, total (seconds), tensor_cores."""
    calls = trace.calls
    owner = owners(calls, trace.device)
    names = calls["name"].cast(pl.String).str.replace(r"^ProfilerStep#.*$", "ProfilerStep*")
    op = names.gather(np.maximum(owner, 0)) if calls.height else pl.Series([""] * len(owner), dtype=pl.String)
    return (
        _classified(trace)
        .with_columns(op.alias("op"), pl.Series("known", owner >= 0))
        .with_columns(pl.when("known").then("op").otherwise(pl.lit("")).alias("op"))
        .group_by("op", "name", "kind", "tensor_cores")
        .agg(calls=pl.len().cast(pl.Int64), total=pl.col("seconds").sum())
        .sort(["total", "op", "name"], descending=[True, False, False])
        .select(
            pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
            "op",
            pl.col("name").alias("kernel"),
            *("kind", "calls", "total", "tensor_cores"),
        )
    )


def _classified(trace: Trace) -> pl.DataFrame:
    rows = trace.device
    talks = of_communication(rows["name"])
    return rows.select(
        pl.col("name").cast(pl.String),
        pl.when(pl.col("kind") != "kernel")
        .then(pl.col("kind").cast(pl.String))
        .when(talks)
        .then(pl.lit("communication"))
        .otherwise(pl.lit("compute"))
        .alias("kind"),
        ((pl.col("end") - pl.col("start")) / 1e9).alias("seconds"),
        uses_tensor_cores(rows["name"]).alias("tensor_cores"),
        "bytes",
    )


# -- launches ---------------------------------------------------------------------------------------------------------


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
