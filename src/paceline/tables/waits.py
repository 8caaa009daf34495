"""The calls in which the host waits for the device, and the script's lines that make them."""

from __future__ import annotations

import polars as pl

from paceline.tables.trace.columns import Trace
from paceline.tables.trace.intervals import Spans
from paceline.tables.trace.kinds import SYNCHRONISING, says
from paceline.tables.trace.steps import windows

# The capture puts such a mark around each call that reads a tensor's value: file, line and call.
LINE = r"^paceline\.line#(.*):(\d+)#(.*)$"


def waits(trace: Trace) -> pl.DataFrame:
    """One row per line of the script, longest wait first: rank, what (`item`, `cpu` …; without a known line, the driver
    call), file, line (empty and 0 if unknown: a trace from elsewhere), calls, seconds (both per step). With a device,
    seconds is the time in which the host waited for it; without one, the duration of the calls."""
    steps = max(windows(trace).height, 1)
    marks = trace.host.filter((pl.col("kind") == "mark") & says(trace.host["name"], LINE))
    # Nested calls (printing a tensor reads it several times) count once.
    marks = marks.sort("start", "end", descending=[False, True])
    reach = marks["end"].cum_max().shift(1).fill_null(-1)
    marks = marks.filter(marks["start"] >= reach)
    blocked = trace.host.filter((pl.col("kind") == "runtime") & says(trace.host["name"], SYNCHRONISING))
    by_line = marks.select(
        pl.col("name")
        .cast(pl.String)
        .str.extract_groups(LINE)
        .struct.rename_fields(["file", "line", "what"])
        .alias("at"),
        pl.Series("length", _waited(trace, marks, blocked)),
    ).unnest("at")
    known = Spans.of(marks["start"].to_numpy(), marks["end"].to_numpy())
    rest = blocked.filter(pl.Series(~known.covered(blocked["start"].to_numpy()), dtype=pl.Boolean))
    unknown = rest.select(
        pl.lit("").alias("file"),
        pl.lit("0").alias("line"),
        pl.col("name").cast(pl.String).alias("what"),
        (pl.col("end") - pl.col("start")).alias("length"),
    )
    return (
        pl.concat([by_line, unknown])
        .group_by("what", "file", "line")
        .agg(calls=pl.len() / steps, seconds=pl.col("length").sum() / 1e9 / steps)
        .with_columns(pl.col("line").cast(pl.Int64))
        .sort(["seconds", "file", "line"], descending=[True, False, False])
        .select(pl.lit(trace.rank, dtype=pl.Int64).alias("rank"), "what", "file", "line", "calls", "seconds")
    )


def _waited(trace: Trace, marks: pl.DataFrame, blocked: pl.DataFrame) -> pl.Series:
    """How long the host was blocked inside each mark."""
    if not trace.has_device:
        return marks["end"] - marks["start"]
    spans = Spans.of(blocked["start"].to_numpy(), blocked["end"].to_numpy())
    return pl.Series(spans.length_within(marks["start"].to_numpy(), marks["end"].to_numpy()))
