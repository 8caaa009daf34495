"""The critical path: the chain of work, over ranks, hosts and devices, that decided how long the steps took.

The walk goes backwards from the end of the last step. On a host it follows the script to its last wait; a wait for the
device leads to the work that ended last, a collective leads to the rank that came last. On a device it leads from each
kernel to what it had to wait for: its launch, the kernel before it on the stream, or one of another stream. Work that
is not on the path could take longer without any effect, up to its slack.

A trace does not record dependencies. They are inferred from times, so neighbouring events may be confused if they end
within a few microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from paceline.tables.timeline import LATE
from paceline.tables.trace.columns import ON_DEVICE, Trace
from paceline.tables.trace.intervals import Integers, Spans
from paceline.tables.trace.kinds import PEERS, SYNCHRONISING, of_communication, says
from paceline.tables.trace.steps import windows
from paceline.tables.trace.time_limit import go_on, paced

SCHEMA = {"rank": pl.Int64, "event": pl.Int64, "kind": pl.String, "start": pl.Int64, "end": pl.Int64}
ON_HOST = ("op", "mark", "runtime", "event")
WAIT = -1  # a wait for the device, in the place of a collective's number
PIECE = 4096  # stations of the walk between two checks of the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of one rank's trace to walk through: nanoseconds as in the trace. `shift` leads to the common clock."""

    trace: Trace
    start: int
    end: int
    shift: int


def critical_path(parts: Sequence[Part]) -> pl.DataFrame:
    """The path from its beginning to its end: rank, event (row of `trace.events`; -1: the host, outside of any event),
    kind (an event's kind, communication, queue: launched but not begun, or host), start, end (common clock). The pieces
    follow one another without gaps."""
    if not parts:
        return pl.DataFrame(schema=SCHEMA)
    return _Walk(parts).path()


class _Rank:
    """One rank as arrays, on the common clock."""

    def __init__(self, part: Part, groups: pl.DataFrame) -> None:
        self.rank, self.start, self.end = part.trace.rank, part.start + part.shift, part.end + part.shift
        events = part.trace.events.with_row_index("event").with_columns(
            pl.col("event").cast(pl.Int64), pl.col("start", "end") + part.shift
        )
        near = (pl.col("start") < self.end) & (pl.col("end") > self.start)
        pairs = launch_pairs(part.trace)
        # Work that was launched within the steps may end after them.
        launched = pairs.join(events.select("event", "start", "end"), left_on="launch", right_on="event").filter(near)
        device = (
            events.filter(pl.col("kind").is_in(ON_DEVICE))
            .join(launched.select("work", called="start", returned="end"), left_on="event", right_on="work", how="left")
            .filter(near | pl.col("called").is_not_null())
            .join(groups.filter("on_device").select("event", "collective"), on="event", how="left")
            .sort("start", "end")
            .with_columns(pl.int_range(pl.len()).alias("row"))
            .with_columns(pl.col("row").shift(1).over("device", "stream").fill_null(-1).alias("before"))
        )
        self.d_event, self.d_start, self.d_end = (device[name].to_numpy() for name in ("event", "start", "end"))
        self.d_kind = device["kind"].cast(pl.String).to_list()
        # When the host had launched it. A call may return only after the work has begun.
        early = pl.when(pl.col("returned") <= pl.col("start")).then("returned").otherwise("called")
        self.d_ready = device.select(early.fill_null(-1)).to_series().to_numpy()
        self.d_collective = device["collective"].fill_null(-1).to_numpy()
        self.d_before = device["before"].to_numpy()
        self.by_end = np.argsort(self.d_end, kind="stable")
        self.ends = self.d_end[self.by_end]
        self.host = events.filter(near & pl.col("kind").is_in(ON_HOST))
        # A call that returns after the work that it launched has waited for it: a copy from pageable memory.
        blocking = device.filter(pl.col("returned") >= pl.col("end"))["event"]
        self._blocked(groups, pairs.filter(pl.col("work").is_in(blocking.implode()))["launch"])

    def _blocked(self, groups: pl.DataFrame, blocking: pl.Series) -> None:
        """The host's waits: for the device, and for peers."""
        waiting = says(self.host["name"], SYNCHRONISING) | self.host["event"].is_in(blocking.implode())
        waits = self.host.filter((pl.col("kind") == "runtime") & waiting).select(
            "event", "start", "end", pl.lit(WAIT, dtype=pl.Int64).alias("collective")
        )
        meets = self.host.join(groups.filter(~pl.col("on_device")).select("event", "collective"), on="event")
        rows = pl.concat([waits, meets.select("event", "start", "end", "collective")]).sort("end", "start")
        self.b_start, self.b_end, self.b_which = (rows[name].to_numpy() for name in ("start", "end", "collective"))
        self.left = rows.height  # waits before this one may still be on the path

    def ended_last(self, moment: int, after: int) -> int:
        """The work on the device that ended last before `moment`; -1 if none ended after `after`."""
        at = int(np.searchsorted(self.ends, moment, side="right")) - 1
        return int(self.by_end[at]) if at >= 0 and self.ends[at] > after else -1


@dataclass
class _Walk:
    parts: Sequence[Part]
    pieces: list[tuple[int, int, str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shifts = {part.trace.rank: part.shift - part.trace.base for part in self.parts}
        groups = collectives([part.trace for part in self.parts])
        self.ranks = [_Rank(part, groups.filter(pl.col("rank") == part.trace.rank)) for part in self.parts]
        self.begin = min(rank.start for rank in self.ranks)
        number = {rank.rank: at for at, rank in enumerate(self.ranks)}
        device_rows = [dict(zip(rank.d_event.tolist(), range(len(rank.d_event)), strict=True)) for rank in self.ranks]
        # Of each collective: the rank that came last, when, and its event.
        self.last: dict[int, tuple[int, int, int, int]] = {}
        rows = groups.select("collective", "rank", "event", "start").rows()
        for collective, rank, event, start in paced(rows):
            here = start + shifts[rank]
            if collective not in self.last or here > self.last[collective][1]:
                at = number[rank]
                self.last[collective] = (at, here, event, device_rows[at].get(event, -1))

    def add(self, rank: int, event: int, kind: str, start: int, end: int) -> None:
        start = max(start, self.begin)
        if end > start:
            self.pieces.append((rank, event, kind, start, end))

    def path(self) -> pl.DataFrame:
        at = max(range(len(self.ranks)), key=lambda one: self.ranks[one].end)
        moment, work = self.ranks[at].end, -1
        for number, rank in enumerate(self.ranks):
            # A device that is still at work when its host has done with the step decides, not the host.
            if len(rank.ends) and rank.ends[-1] > moment:
                at, moment, work = number, int(rank.ends[-1]), int(rank.by_end[-1])
        most = sum(len(rank.d_event) + len(rank.b_end) for rank in self.ranks) + len(self.ranks) + 1
        for number in range(2 * most):
            if not number % PIECE:
                go_on()
            if moment <= self.begin:
                break
            at, moment, work = self._on_device(at, moment, work) if work >= 0 else self._on_host(at, moment)
        return self._with_names()

    def _on_host(self, at: int, moment: int) -> tuple[int, int, int]:
        """From a moment on a host to its last wait. Gives the next rank, moment, and work on its device (-1: host)."""
        rank = self.ranks[at]
        wait = min(int(np.searchsorted(rank.b_end, moment, side="right")), rank.left) - 1
        while wait >= 0:
            start, end, which = int(rank.b_start[wait]), int(rank.b_end[wait]), int(rank.b_which[wait])
            rank.left = wait
            if which != WAIT:
                other, came, event, work = self.last[which]
                if came <= moment:
                    self.add(at, -1, "host", end, moment)
                    self.add(other, event, "communication", came, min(end, moment))
                    return other, came, -1
            elif (work := rank.ended_last(end + LATE, start)) >= 0:
                ended = min(int(rank.d_end[work]), moment)
                self.add(at, -1, "host", ended, moment)
                return at, ended, work
            wait -= 1
        self.add(at, -1, "host", self.begin, moment)
        return at, self.begin, -1

    def _on_device(self, at: int, moment: int, work: int) -> tuple[int, int, int]:
        """From the end of some work on a device to what it had to wait for."""
        rank = self.ranks[at]
        which, event = int(rank.d_collective[work]), int(rank.d_event[work])
        if which >= 0 and self.last[which][3] >= 0 and self.last[which][1] <= moment:
            at, start, event, work = self.last[which]
            rank = self.ranks[at]
            self.add(at, event, "communication", start, moment)
        else:
            start = min(int(rank.d_start[work]), moment)
            self.add(at, event, rank.d_kind[work], start, moment)
        ready = min(int(rank.d_ready[work]), start)
        before = int(rank.d_before[work])
        free = int(rank.d_end[before]) if before >= 0 else -1
        if start - max(ready, free) > LATE:  # it waited neither for its launch nor for its stream: for another one
            other = rank.ended_last(start, max(ready, free))
            before, free = (other, int(rank.d_end[other])) if other >= 0 else (before, free)
        if max(ready, free) < 0:
            return at, start, -1
        if ready >= free:
            self.add(at, event, "queue", ready, start)
            return at, ready, -1
        self.add(at, event, "queue", free, start)
        return at, min(free, start), before

    def _with_names(self) -> pl.DataFrame:
        """The path forwards; the host's pieces are cut into the innermost events that were open."""
        flat: dict[int, tuple[Integers, Integers, Integers, list[str]]] = {}
        found: list[tuple[int, int, str, int, int]] = []
        for at, event, kind, start, end in paced(reversed(self.pieces)):
            rank = self.ranks[at].rank
            if kind != "host":
                found.append((rank, event, kind, start, end))
                continue
            if at not in flat:
                flat[at] = _flattened(self.ranks[at].host)
            found += [(rank, *piece) for piece in _cut(flat[at], start, end)]
        return pl.DataFrame(found, schema=SCHEMA, orient="row")


def _cut(flat: tuple[Integers, Integers, Integers, list[str]], start: int, end: int) -> list[tuple[int, str, int, int]]:
    starts, ends, events, kinds = flat
    found: list[tuple[int, str, int, int]] = []
    first, last = int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(starts, end))
    moment = start
    for piece in range(first, last):
        begin, until = max(int(starts[piece]), start), min(int(ends[piece]), end)
        if begin > moment:
            found.append((-1, "host", moment, begin))
        if until > begin:
            found.append((int(events[piece]), kinds[piece], begin, until))
        moment = max(moment, until)
    if end > moment:
        found.append((-1, "host", moment, end))
    return found


def _flattened(host: pl.DataFrame) -> tuple[Any, Any, Any, list[str]]:
    """The host's time in pieces: of the events that are open at a moment, on any thread, the one that began last."""
    rows = host.sort("start", "end", descending=[False, True])
    told = zip(rows["event"].to_list(), rows["start"].to_list(), rows["end"].to_list(), strict=True)
    pieces: list[tuple[int, int, int]] = []
    open_now: list[tuple[int, int]] = []  # events and ends, the innermost last
    at = 0

    def close_until(moment: int) -> None:
        nonlocal at
        while open_now and at < moment:
            event, end = open_now[-1]
            if end > at:
                until = min(end, moment)
                pieces.append((at, until, event))
                at = until
            if end <= moment:
                open_now.pop()

    for event, start, end in paced(told):
        close_until(start)
        at = start
        open_now.append((event, end))
    if rows.height:
        close_until(int(rows["end"].max()))  # type: ignore[arg-type]
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    kind = dict(zip(rows["event"].to_list(), rows["kind"].cast(pl.String).to_list(), strict=True))
    return columns[0], columns[1], columns[2], [kind[event] for event in columns[2].tolist()]


# -- links between events ---------------------------------------------------------------------------------------------
# Time lines draw these pairs as arrows, and the critical path follows them from one rank or device to the next.


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
        return pl.DataFrame(schema=LINKS)
    rows = pl.concat(found)
    counts = rows.group_by("step", "name", "rank").len()
    equal = counts.group_by("step", "name").agg(
        ((pl.len() == len(found)) & (pl.col("len").n_unique() == 1)).alias("equal")
    )
    rows = rows.join(equal.filter("equal"), on=["step", "name"], maintain_order="left")
    return (
        rows.with_columns(pl.int_range(pl.len()).over("step", "name", "rank").alias("number"))
        .with_columns(pl.struct("step", "name", "number").rank("dense").cast(pl.Int64).alias("collective"))
        .select(list(LINKS))
        .sort("collective", "rank")
    )


LINKS: dict[str, type[pl.DataType]] = {
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
