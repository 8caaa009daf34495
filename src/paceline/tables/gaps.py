"""The gaps of each stream, by cause: when a stream of a device had no work, and why."""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.tables.timeline import CAUSES, idle, work
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.intervals import Spans
from paceline.tables.trace.steps import covered

OTHER_STREAM = "other stream"  # another stream of the device had work meanwhile
REASONS = {
    OTHER_STREAM: "another stream of the device works",
    "input": "the script waits for its loader",
    "peer": "the host waits for other workers",
    "synchronisation": "the host starts again after a wait for the device",
    "host": "the host launches too late",
    "queue": "launched, but not begun",
}
SCHEMA = {
    "rank": pl.Int64,
    "device": pl.Int64,
    "stream": pl.Int64,
    "cause": pl.String,
    "start": pl.Int64,
    "end": pl.Int64,
}


def stream_gaps(trace: Trace) -> pl.DataFrame:
    """One row per gap and cause: rank, device, stream, cause (a key of REASONS), start, end (nanoseconds, as in the
    trace). The gaps of a stream are all times within steps in which it had no work, and its causes do not overlap."""
    inside = covered(trace)
    rows = trace.device.select("device", "stream", "start", "end")
    frames = []
    if len(inside):
        first, last = int(inside.starts[0]), int(inside.ends[-1])
        for each in work(trace):
            mine = rows.filter(pl.col("device") == each.device)
            by_cause = idle(trace, each)
            for (stream,), own in mine.group_by("stream", maintain_order=True):
                gaps = Spans.of(own["start"].to_numpy(), own["end"].to_numpy()).gaps(first, last) & inside
                parts = {OTHER_STREAM: gaps & each.busy, **{cause: gaps & by_cause[cause] for cause in CAUSES}}
                frames += [_frame(trace.rank, each.device, stream, cause, spans) for cause, spans in parts.items()]
    found = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    return found.sort("device", "stream", "start")


def _frame(rank: int, device: int, stream: object, cause: str, spans: Spans) -> pl.DataFrame:
    count = len(spans)
    return pl.DataFrame(
        {
            "rank": np.full(count, rank),
            "device": np.full(count, device),
            "stream": np.full(count, stream),
            "cause": [cause] * count,
            "start": spans.starts,
            "end": spans.ends,
        },
        schema=SCHEMA,
    )
