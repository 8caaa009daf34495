"""Time by op, on the host and on the device."""

from __future__ import annotations

from typing import Literal

import polars as pl

from paceline.tables.trace.columns import Trace
from paceline.tables.trace.kinds import could_use_tensor_cores

By = Literal["name", "shapes"]


def ops(trace: Trace, *, by: By = "name") -> pl.DataFrame:
    """One row per op, most device time first, then most host time. The numbers are those of torch's `key_averages`.

    rank, kind (op; mark: a `record_function`; runtime: a call of the device's driver), name, with `by="shapes"` also
    shapes and types; calls; host_self, host_total; kernels, device_self, device_total: device work for the op itself,
    and also for the ops it called; eligible (could use tensor cores), tensor_cores (share of device_self that ran on
    them; null without device work). Times are seconds, summed over all calls; totals count nested calls of the same op
    twice.
    """
    keys = ["kind", "name"] if by == "name" else ["kind", "name", "shapes", "types"]
    table = (
        trace.calls.lazy()
        .with_columns(pl.col("name").cast(pl.String).str.replace(r"^ProfilerStep#.*$", "ProfilerStep*"))
        .group_by(keys)
        .agg(
            calls=pl.len().cast(pl.Int64),
            host_self=pl.col("host_self").sum(),
            host_total=(pl.col("end") - pl.col("start")).sum(),
            kernels=pl.col("kernels").sum(),
            device_self=pl.col("device_self").sum(),
            device_total=pl.col("device_total").sum(),
            tensor_self=pl.col("tensor_self").sum(),
        )
        .collect()
    )
    return (
        table.with_columns(
            could_use_tensor_cores(table["name"]).alias("eligible"),
            pl.when(pl.col("device_self") > 0)
            .then(pl.col("tensor_self") / pl.col("device_self"))
            .alias("tensor_cores"),
            pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
            # Each trace has its own name categories: plain text lets tables of several ranks be concatenated.
            pl.col([name for name in keys if name != "name"]).cast(pl.String),
        )
        .sort(["device_self", "host_self", "name"], descending=[True, True, False])
        .with_columns(pl.col("host_self", "host_total", "device_self", "device_total") / 1e9)
        .select(
            *("rank", *keys, "calls", "host_self", "host_total", "kernels", "device_self", "device_total"),
            *("eligible", "tensor_cores"),
        )
    )
