"""How a device spent its time: compute, communication, copies, and idle time by cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from paceline.tables.trace.columns import Trace
from paceline.tables.trace.intervals import EMPTY, Integers, Spans
from paceline.tables.trace.kinds import of_communication, uses_tensor_cores
from paceline.tables.trace.steps import covered, synchronising, waiting_for_input, waiting_for_peers, walls, windows

LATE = 10_000  # nanoseconds by which the host may learn late that the device has finished; clocks agree no better

CAUSES = ("input", "peer", "synchronisation", "host", "queue")


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The busy times of one device, by kind. Kinds may overlap, because streams run concurrently."""

    device: int
    compute: Spans
    tensor: Spans  # the part of compute that ran on tensor cores
    communication: Spans
    copy: Spans

    @property
    def busy(self) -> Spans:
        return self.compute | self.communication | self.copy


def work(trace: Trace) -> list[DeviceWork]:
    """The work of each device over the whole trace."""
    rows = trace.device
    kernel = (rows["kind"] == "kernel").to_numpy()
    talks = of_communication(rows["name"]).to_numpy() & kernel
    tensor = uses_tensor_cores(rows["name"]).to_numpy() & kernel & ~talks
    device, starts, ends = rows["device"].to_numpy(), rows["start"].to_numpy(), rows["end"].to_numpy()
    order = np.argsort(device, kind="stable")
    numbers, firsts = np.unique(device[order], return_index=True)
    found = []
    for number, here in zip(numbers, np.split(order, firsts[1:]), strict=False):  # without devices, one empty piece

        def spans(which: np.ndarray, here: Integers = here) -> Spans:
            mine = here[which[here]]
            return Spans.of(starts[mine], ends[mine])

        found.append(DeviceWork(int(number), spans(kernel & ~talks), spans(tensor), spans(talks), spans(~kernel)))
    return found


def timeline(trace: Trace) -> pl.DataFrame:
    """One row per device and step; seconds.

    rank, device, step, wall = compute + communication + copy + idle: each moment counts once, for the first of these
    that was active. tensor: the part of compute on tensor cores. communication_total, copy_total: including the parts
    hidden under compute. idle = the sum of idle_input (the script waited for its loader), idle_peer (the host waited
    for other workers), idle_synchronisation (the host restarted after a wait for the device), idle_host (the host was
    late for other reasons), idle_queue (the work was launched but had not begun: launch latency, another stream).
    """
    steps = windows(trace)
    starts, ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    inside, wall = covered(trace), walls(trace)
    tables = []
    for each in work(trace):
        exposed = each.communication - each.compute
        parts = {
            "compute": each.compute,
            "communication": exposed,
            "copy": each.copy - each.compute - each.communication,
            **{f"idle_{cause}": spans for cause, spans in idle(trace, each).items()},
            "tensor": each.tensor,
            "communication_total": each.communication,
            "copy_total": each.copy,
        }
        figures = {name: (spans & inside).length_within(starts, ends) / 1e9 for name, spans in parts.items()}
        tables.append(
            steps.select(
                pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
                pl.lit(each.device, dtype=pl.Int64).alias("device"),
                "step",
                wall,
            )
            .with_columns(pl.Series(name, values) for name, values in figures.items())
            .with_columns(idle=pl.sum_horizontal(f"idle_{cause}" for cause in CAUSES))
        )
    return pl.concat(tables).select(COLUMNS) if tables else pl.DataFrame(schema=SCHEMA)


COLUMNS = [
    *("rank", "device", "step", "wall", "compute", "communication", "copy", "idle"),
    *(f"idle_{cause}" for cause in CAUSES),
    *("tensor", "communication_total", "copy_total"),
]
SCHEMA = {name: pl.Float64 if name not in ("rank", "device", "step") else pl.Int64 for name in COLUMNS}


def idle(trace: Trace, each: DeviceWork) -> dict[str, Spans]:
    """The idle times of a device, by cause. The causes do not overlap; together they are all its gaps within steps."""
    inside = covered(trace)
    if not len(inside):
        return dict.fromkeys(CAUSES, EMPTY)
    gaps = each.busy.gaps(int(inside.starts[0]), int(inside.ends[-1]))
    begun = _launched(trace, each.device, gaps)
    # Before the launch the host was late; after it the work was in the queue.
    before, queue = Spans.of(gaps.starts, begun), Spans.of(begun, gaps.ends)
    loading, peers = waiting_for_input(trace), waiting_for_peers(trace) - waiting_for_input(trace)
    waits = synchronising(trace)
    drained = Spans.of(waits.starts, waits.ends + LATE).covered(gaps.starts - 1)
    after_wait = Spans.of(gaps.starts[drained], begun[drained])
    own = before - loading - peers
    found = {
        "input": gaps & loading,
        "peer": gaps & peers,
        "synchronisation": own & after_wait,
        "host": own - after_wait,
        "queue": queue - loading - peers,
    }
    return {cause: spans & inside for cause, spans in found.items()}


def _launched(trace: Trace, device: int, gaps: Spans) -> Integers:
    """When the host launched the event that ended each gap, clipped to the gap; the gap's end if not known."""
    rows = trace.device.filter(pl.col("device") == device)
    starts = rows["start"].to_numpy()
    if not len(starts):
        return gaps.ends
    following = np.searchsorted(starts, gaps.ends)
    known = following < len(starts)
    launched = trace.launch_times(rows)[np.minimum(following, len(starts) - 1)]
    launched = np.where(known & (launched >= 0), launched, gaps.ends)
    result: Integers = np.clip(launched, gaps.starts, gaps.ends)
    return result


# -- overlap ----------------------------------------------------------------------------------------------------------


def overlap(trace: Trace) -> pl.DataFrame:
    """One row per device, over the whole trace: rank, device, communication = hidden + exposed (seconds), share (of
    communication that was hidden; null without communication)."""
    rows = []
    for each in work(trace):
        total, hidden = each.communication.length, (each.communication & each.compute).length
        share = hidden / total if total else None
        rows.append((trace.rank, each.device, total / 1e9, hidden / 1e9, (total - hidden) / 1e9, share))
    schema = {"rank": pl.Int64, "device": pl.Int64, "communication": pl.Float64, "hidden": pl.Float64}
    return pl.DataFrame(rows, schema={**schema, "exposed": pl.Float64, "share": pl.Float64}, orient="row")


# -- gaps -------------------------------------------------------------------------------------------------------------


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
GAPS: dict[str, Any] = {
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
    frames = [pl.DataFrame(schema=GAPS)]
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
    return pl.DataFrame({**where, **times, "cause": named, **dict(zip(REASONS, lengths, strict=True))}, schema=GAPS)
