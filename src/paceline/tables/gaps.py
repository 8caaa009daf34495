"""The gaps of each stream, by cause: when a stream of a device had no work, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from paceline.tables.timeline import idle, work
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
CAUSE = pl.Enum(list(REASONS))
SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("rank", "device", "stream", "start", "end"), pl.Int64),
    "cause": CAUSE,
    **dict.fromkeys(REASONS, pl.Int64),
}


def stream_gaps(trace: Trace, start: int | None = None, end: int | None = None) -> pl.DataFrame:
    """One row per gap of a stream, within steps, and between `start` and `end` if given: rank, device, stream, start,
    end (nanoseconds, as in the trace), cause (the one that took most of the gap), and the time of each cause in it (a
    column for each key of REASONS). The causes add up to the gap: at any moment there is one."""
    inside = covered(trace)
    if len(inside) and start is not None and end is not None:
        inside = inside & Spans.of([start], [end])
    frames = [pl.DataFrame(schema=SCHEMA)]
    if len(inside):
        first, last = int(inside.starts[0]), int(inside.ends[-1])
        rows = trace.device
        device, stream = rows["device"].to_numpy(), rows["stream"].to_numpy()
        starts, ends = rows["start"].to_numpy(), rows["end"].to_numpy()
        for each in work(trace):
            causes = {OTHER_STREAM: each.busy, **idle(trace, each)}
            for number in np.unique(stream[device == each.device]):
                own = (device == each.device) & (stream == number)
                gaps = Spans.of(starts[own], ends[own]).gaps(first, last) & inside
                lengths = [causes[cause].length_within(gaps.starts, gaps.ends) for cause in REASONS]
                frames.append(_frame(trace.rank, each.device, int(number), gaps, lengths))
    return pl.concat(frames)


def _frame(rank: int, device: int, stream: int, gaps: Spans, lengths: list[np.ndarray]) -> pl.DataFrame:
    count = len(gaps)
    main = np.argmax(lengths, axis=0) if count else np.empty(0, dtype=np.int64)
    where = {name: np.full(count, value) for name, value in (("rank", rank), ("device", device), ("stream", stream))}
    times = {"start": gaps.starts, "end": gaps.ends}
    named = pl.Series("cause", list(REASONS), dtype=CAUSE).gather(main)
    return pl.DataFrame({**where, **times, "cause": named, **dict(zip(REASONS, lengths, strict=True))}, schema=SCHEMA)
