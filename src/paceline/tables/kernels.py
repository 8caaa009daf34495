"""The kernels that a device ran, and the ops that launched them."""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.tables.trace.columns import Trace
from paceline.tables.trace.kinds import of_communication, uses_tensor_cores
from paceline.tables.trace.nesting import owners


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
