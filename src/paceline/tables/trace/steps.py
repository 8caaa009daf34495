"""The steps of a trace, and the phases of the script in them.

Steps are those marked by `profiler.step()`. Phases are Paceline's own marks (`paceline.forward` …), which the capture
puts around the seams; in a trace from elsewhere they are guessed from torch's marks and op names.
"""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from paceline.record.phases import AT_SEAMS, MARK, OTHER, PHASES
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.intervals import EMPTY, Spans
from paceline.tables.trace.kinds import INPUT, PEERS, STEP, SYNCHRONISING, says
from paceline.tables.trace.nesting import in_order
from paceline.tables.trace.time_limit import paced

MARKS = rf"^{re.escape(MARK)}({'|'.join(PHASES)})$"


def windows(trace: Trace) -> pl.DataFrame:
    """step, start, end (nanoseconds, as in the trace). A trace without steps is one step, number 0; an empty trace has
    none."""
    marks = trace.events.filter((pl.col("kind") == "mark") & says(trace.events["name"], STEP))
    if marks.height:
        number = pl.col("name").cast(pl.String).str.extract(r"(\d+)").cast(pl.Int64, strict=False).fill_null(0)
        steps = marks.select(number.alias("step"), "start", "end").sort("start")
        last = trace.head.paceline.get("last")
        # A script that ended during the trace had begun a step that it did not finish.
        return steps.filter(pl.col("step") <= last) if isinstance(last, int) else steps
    if not trace.events.height:
        return pl.DataFrame(schema={"step": pl.Int64, "start": pl.Int64, "end": pl.Int64})
    return trace.events.select(pl.lit(0, dtype=pl.Int64).alias("step"), pl.col("start").min(), pl.col("end").max())


def covered(trace: Trace) -> Spans:
    """The times that belong to a step: Paceline's own checks do not."""
    steps = windows(trace)
    return Spans.of(steps["start"].to_numpy(), steps["end"].to_numpy()) - trace.checks


def walls(trace: Trace) -> pl.Series:
    """The seconds of each step of `windows`."""
    steps = windows(trace)
    return pl.Series("wall", covered(trace).length_within(steps["start"].to_numpy(), steps["end"].to_numpy()) / 1e9)


def phases(trace: Trace) -> dict[str, Spans]:
    """The times of each phase. Phases do not overlap, and together they are all of `covered`."""
    everything = covered(trace)
    found = _marked(trace) or _guessed(trace)
    found = {phase: spans & everything for phase, spans in found.items()}
    rest = everything
    for spans in found.values():
        rest = rest - spans
    return {phase: found.get(phase, EMPTY) if phase != OTHER else rest | found.get(phase, EMPTY) for phase in PHASES}


def breakdown(trace: Trace) -> pl.DataFrame:
    """The host's time in each step: rank, step, wall, and the phases, which add up to it. Seconds; null in phases at
    seams that were not measured, whose time is in `other`."""
    steps = windows(trace)
    starts, ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    found = phases(trace)
    parts: dict[str, Any] = {phase: spans.length_within(starts, ends) / 1e9 for phase, spans in found.items()}
    if not any(len(found[phase]) for phase in AT_SEAMS) and _marked(trace):
        parts |= dict.fromkeys(AT_SEAMS, [None] * steps.height)
    return steps.select(
        pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
        "step",
        walls(trace),
    ).with_columns(pl.Series(phase, seconds, dtype=pl.Float64) for phase, seconds in parts.items())


def waiting_for_input(trace: Trace) -> Spans:
    """When the script waited for its loader."""
    return spans_of(trace, "mark", INPUT)


def waiting_for_peers(trace: Trace) -> Spans:
    """When the host itself waited for other workers. (A kernel that waits for them counts as busy.)"""
    return spans_of(trace, "mark", PEERS) | spans_of(trace, "op", PEERS)


def synchronising(trace: Trace) -> Spans:
    """When the host waited for the device."""
    return spans_of(trace, "runtime", SYNCHRONISING)


def spans_of(trace: Trace, kind: str, pattern: str) -> Spans:
    """The times in which an event of this kind, with a matching name, was active."""
    found = trace.counted.filter((pl.col("kind") == kind) & says(trace.counted["name"], pattern))
    return Spans.of(found["start"].to_numpy(), found["end"].to_numpy())


def _marked(trace: Trace) -> dict[str, Spans]:
    marks = trace.events.filter((pl.col("kind") == "mark") & says(trace.events["name"], MARKS))
    if not marks.height:
        return {}
    # While a backward thread works, the script's own thread waits: marks are nested even across threads.
    marks = in_order(marks.with_columns(process=pl.lit(0), thread=pl.lit(0)))
    names = marks["name"].cast(pl.String).str.strip_prefix(MARK).to_numpy()
    return _innermost(names.tolist(), marks["start"].to_list(), marks["end"].to_list())


def _innermost(names: list[str], starts: list[int], ends: list[int]) -> dict[str, Spans]:
    """Each moment belongs to the innermost mark that contains it: of the open marks, the one that began last; of two
    that began together, the shorter one. Marks come in the order of their starts, longest first. One pass for any depth
    of nesting."""
    pieces: dict[str, list[int]] = {name: [] for name in names}  # starts and ends, in turn
    open_now: list[tuple[str, int]] = []  # names and ends, the innermost last
    at = 0

    def close_until(moment: int) -> None:
        """Assigns the time from `at` to `moment`."""
        nonlocal at
        while open_now and at < moment:
            name, end = open_now[-1]
            if end > at:
                until = min(end, moment)
                pieces[name] += (at, until)
                at = until
            if end <= moment:
                open_now.pop()

    for name, start, end in paced(zip(names, starts, ends, strict=True)):
        close_until(start)
        at = start
        open_now.append((name, end))
    if ends:
        close_until(max(ends))
    return {name: Spans.of(told[0::2], told[1::2]) for name, told in pieces.items()}


def _guessed(trace: Trace) -> dict[str, Spans]:
    """Phases without Paceline's marks: torch marks its loader, its optimizer and autograd's ops; other ops are
    forward."""
    data = waiting_for_input(trace)
    peers = waiting_for_peers(trace) - data
    optimizer = spans_of(trace, "mark", r"^Optimizer\.step#") - data - peers
    backward = spans_of(trace, "op", r"^autograd::engine::evaluate_function") - data - peers - optimizer
    forward = spans_of(trace, "op", r"") - data - peers - optimizer - backward
    return {"data": data, "communication": peers, "optimizer": optimizer, "backward": backward, "forward": forward}
