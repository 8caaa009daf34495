"""The difference between two runs: by phase of a step, and by op."""

from __future__ import annotations

import polars as pl

from paceline.record.phases import PHASES
from paceline.tables.figures import columns_in, figures
from paceline.tables.ops import ops
from paceline.tables.records import Tables
from paceline.tables.trace.steps import windows


def difference(before: Tables, after: Tables) -> pl.DataFrame:
    """One row per phase of a step, and `total`: part, before, after (seconds per step: `Figures.step` of each run),
    change (after - before), ratio (after / before; null if before is 0)."""
    rows = []
    befores, afters = (figures(columns_in(tables.steps)).step for tables in (before, after))
    for part in ("total", *PHASES):
        a, b = befores[part], afters[part]
        rows.append((part, a, b, b - a, b / a if a else None))
    schema = {"part": pl.String, "before": pl.Float64, "after": pl.Float64, "change": pl.Float64, "ratio": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def difference_of_ops(before: Tables, after: Tables) -> pl.DataFrame:
    """One row per op, largest change first: name, and calls, host (host_self) and device (device_self; seconds) per
    step of one rank: before, after; change: in device time if either run has a device, else in host time."""
    a, b = _ops(before), _ops(after)
    table = a.join(b, on="name", how="full", suffix="_after", coalesce=True).fill_null(0.0)
    table = table.rename({name: f"{name}_before" for name in ("calls", "host", "device")})
    on_device = bool((table["device_before"] > 0).any() or (table["device_after"] > 0).any())
    time = "device" if on_device else "host"
    change = (pl.col(f"{time}_after") - pl.col(f"{time}_before")).alias("change")
    return table.with_columns(change).sort([pl.col("change").abs(), "name"], descending=[True, False])


def _ops(tables: Tables) -> pl.DataFrame:
    steps = sum(max(windows(trace).height, 1) for trace in tables.traces)
    return (
        tables.over_ranks(ops)
        .filter(pl.col("kind") == "op")
        .group_by("name")
        .agg(
            calls=pl.col("calls").sum() / steps,
            host=pl.col("host_self").sum() / steps,
            device=pl.col("device_self").sum() / steps,
        )
    )
