"""Which events belong together: a launch and the work that it started, and one collective on all ranks.

Time lines draw these pairs as arrows, and the critical path follows them from one rank or device to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from paceline.tables.trace.columns import ON_DEVICE, Trace
from paceline.tables.trace.intervals import Spans
from paceline.tables.trace.kinds import PEERS, of_communication, says
from paceline.tables.trace.steps import windows


def launch_pairs(trace: Trace) -> pl.DataFrame:
    """One row per kernel, copy or set whose launch is in the trace: launch, work (row numbers of `trace.events`)."""
    rows = trace.events.select("kind", "correlation").with_row_index("event").filter(pl.col("correlation") > 0)
    launches = rows.filter(pl.col("kind") == "runtime").select("correlation", launch="event")
    work = rows.filter(pl.col("kind").is_in(ON_DEVICE)).select("correlation", work="event")
    return (
        work.join(launches.unique("correlation", keep="first", maintain_order=True), on="correlation")
        .select(pl.col("launch", "work").cast(pl.Int64))
        .sort("launch", "work")
    )


def collectives(traces: Sequence[Trace]) -> pl.DataFrame:
    """Every collective that all ranks have in the same step: collective (a number), rank, event (row number of
    `trace.events`), start, end (nanoseconds since the epoch, by the rank's clock), on_device.

    Collectives have no identity in a trace. So the n-th one of a name in a step is taken as the same on all ranks, if
    all ranks have equally many of this name in this step; others are left out.
    """
    found = [_collectives(trace) for trace in traces]
    if len(found) < 2:
        return pl.DataFrame(schema=SCHEMA)
    rows = pl.concat(found)
    counts = rows.group_by("step", "name", "rank").len()
    equal = counts.group_by("step", "name").agg(
        ((pl.len() == len(found)) & (pl.col("len").n_unique() == 1)).alias("equal")
    )
    rows = rows.join(equal.filter("equal"), on=["step", "name"], maintain_order="left")
    return (
        rows.with_columns(pl.int_range(pl.len()).over("step", "name", "rank").alias("number"))
        .with_columns(pl.struct("step", "name", "number").rank("dense").cast(pl.Int64).alias("collective"))
        .select(list(SCHEMA))
        .sort("collective", "rank")
    )


SCHEMA: dict[str, type[pl.DataType]] = {
    "collective": pl.Int64,
    "rank": pl.Int64,
    "event": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "on_device": pl.Boolean,
}


def _collectives(trace: Trace) -> pl.DataFrame:
    """The collectives of one rank, in order. Kernels, if there are any; else the host's own waits for peers."""
    rows = trace.events.select("kind", "name", "start", "end").with_row_index("event")
    on_device = of_communication(rows["name"]) & (rows["kind"] == "kernel")
    if on_device.any():
        rows = rows.filter(on_device).sort("start")
    else:
        rows = rows.filter(says(rows["name"], PEERS) & rows["kind"].is_in(["mark", "op"]))
        # A backend's own op lies inside Paceline's mark, and is the same collective.
        rows = rows.sort("start", "end", descending=[False, True])
        reach = rows["end"].cum_max().shift(1).fill_null(np.iinfo(np.int64).min)
        rows = rows.filter(rows["start"] >= reach)
    steps = windows(trace)
    at = Spans(steps["start"].to_numpy(), steps["end"].to_numpy()).index_of(rows["start"].to_numpy())
    number = np.where(at >= 0, steps["step"].to_numpy()[np.maximum(at, 0)], -1) if steps.height else at
    return rows.select(
        pl.Series("step", number, dtype=pl.Int64),
        pl.col("name").cast(pl.String),
        pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
        pl.col("event").cast(pl.Int64),
        (pl.col("start") + trace.base).alias("start"),
        (pl.col("end") + trace.base).alias("end"),
        pl.lit(bool(on_device.any())).alias("on_device"),
    )
