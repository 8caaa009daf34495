"""Lays spans out for the time line: tracks, rows of a track, and columns that a browser reads without parsing them.

The spans of a row follow one another in the columns, sorted by their starts, and do not overlap. So a browser finds
what is in view by bisection, and needs no sorting of its own, however many spans there are.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from paceline.tables.trace.time_limit import go_on, paced

DEEPEST = 24  # rows of a track
KINDS = ("op", "mark", "runtime", "kernel", "copy", "set", "sync", "python", "communication", "gap", "event")
LAUNCH, COLLECTIVE = 0, 1  # kinds of links
ALIGNED = 8  # bytes
PARTS = 4096  # of the time in an overview: as many as the widest screens have pixels

Column = NDArray[Any]


class Track(msgspec.Struct, kw_only=True):
    """`rows` has the number of spans in each row."""

    rank: int
    label: str
    rows: list[int]


class StepMark(msgspec.Struct, kw_only=True):
    """Where a step begins and ends on the first rank that has it: nanoseconds since the drawing begins."""

    step: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class StepSpans:
    """The spans of some steps, as columns. `start` and `length` are nanoseconds, `start` since the first step began.
    `name` and `kind` are indices into `names` and KINDS. A link leads from one span to another. `rank` and `event` say
    where a span comes from: a row of that rank's trace, or -1."""

    step: int
    until: int
    end: int
    names: list[str]
    tracks: list[Track]
    steps: list[StepMark]
    start: Column
    length: Column
    name: Column
    kind: Column
    event: Column
    link_from: Column
    link_to: Column
    link_kind: Column
    gaps: pl.DataFrame | None = None  # of the streams, as `tables.gaps` has them
    left_out: int = 0
    note: str = ""
    # Of an overview: where each of its spans is in the columns of the whole, and the whole's number of events.
    place: Column = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    of: int | None = None

    @property
    def events(self) -> int:
        """Number of events: all spans but the gaps of streams."""
        return int((self.kind != KINDS.index("gap")).sum()) if self.of is None else self.of

    @property
    def track(self) -> Column:
        return np.repeat(np.arange(len(self.tracks)), [sum(track.rows) for track in self.tracks])

    @property
    def depth(self) -> Column:
        rows = [number for track in self.tracks for number in range(len(track.rows))]
        return np.repeat(np.array(rows, dtype=np.int64), [count for track in self.tracks for count in track.rows])

    def places(self, rank: int, events: int) -> Column:
        """Where each of the `events` events of a rank's trace is in the columns; -1 if it is not drawn."""
        found = np.full(events, -1)
        at = 0
        for track in self.tracks:
            until = at + sum(track.rows)
            if track.rank == rank:
                own = self.event[at:until]
                known = np.flatnonzero((own >= 0) & (own < events))
                found[own[known]] = at + known
            at = until
        return found


_SENT = {
    "start": np.float64,
    "length": np.float64,
    "name": np.uint32,
    "link_from": np.uint32,
    "link_to": np.uint32,
    "place": np.uint32,
    "kind": np.uint8,
    "link_kind": np.uint8,
}


def pack(spans: StepSpans) -> bytes:
    """The spans for a browser: the length of a JSON head in 8 digits, the head, then the columns, little-endian, each
    at a multiple of 8 bytes."""
    columns = {name: np.ascontiguousarray(getattr(spans, name), dtype=kind) for name, kind in _SENT.items()}
    at, places = 0, {}
    for name, values in columns.items():
        places[name] = (at, len(values))
        at += -(-values.nbytes // ALIGNED) * ALIGNED
    told = ("step", "until", "end", "names", "tracks", "steps", "left_out", "note", "events")
    head = msgspec.json.encode({**{name: getattr(spans, name) for name in told}, "kinds": KINDS, "columns": places})
    head += b" " * (-len(head) % ALIGNED)
    parts = [f"{len(head):08d}".encode(), head]
    for values in columns.values():
        raw = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        parts += [raw, bytes(-len(raw) % ALIGNED)]
    return b"".join(parts)


def overview(spans: StepSpans, parts: int = PARTS) -> StepSpans:
    """The spans that a first look can tell apart: in every row the long ones, and the first of the short ones in each
    of `parts` equal parts of the time. Without links."""
    counts = [count for track in spans.tracks for count in track.rows]
    row = np.repeat(np.arange(len(counts)), counts)
    wide = max(spans.end, 1) / parts
    part = row * (4 * parts) + np.clip(spans.start / wide, -parts, 2 * parts).astype(np.int64)
    kept = np.flatnonzero((spans.length >= wide) | np.concatenate(([True], part[1:] != part[:-1]))[: len(part)])
    left = iter(np.bincount(row[kept], minlength=len(counts)).tolist())
    nothing = np.empty(0, dtype=np.int64)
    return replace(
        spans,
        tracks=[Track(rank=one.rank, label=one.label, rows=[next(left) for _ in one.rows]) for one in spans.tracks],
        **{name: getattr(spans, name)[kept] for name in ("start", "length", "name", "kind", "event")},
        link_from=nothing,
        link_to=nothing,
        link_kind=nothing,
        place=kept,
        of=spans.events,
    )


def unpack(packed: bytes) -> dict[str, Any]:
    """What a browser makes of the bytes: for programs and tests."""
    until = ALIGNED + int(packed[:ALIGNED])
    told: dict[str, Any] = msgspec.json.decode(packed[ALIGNED:until])
    for name, (at, count) in told.pop("columns").items():
        told[name] = np.frombuffer(packed, np.dtype(_SENT[name]).newbyteorder("<"), count, until + at).tolist()
    return told


def as_text(spans: StepSpans) -> str:
    """The packed spans, for a page that has no server."""
    return base64.b64encode(pack(spans)).decode()


@dataclass
class Drawing:
    """Collects tracks. Times are nanoseconds since the first step began."""

    names: dict[str, int] = field(default_factory=dict)
    tracks: list[Track] = field(default_factory=list)
    columns: dict[str, list[Column]] = field(
        default_factory=lambda: {name: [] for name in ("start", "length", "name", "kind", "event")}
    )
    too_deep: int = 0

    def names_of(self, texts: Sequence[str]) -> Column:
        """The numbers of these names."""
        return np.array([self.names.setdefault(text, len(self.names)) for text in texts], dtype=np.int64)

    def add(
        self,
        rank: int,
        label: str,
        start: Column,
        end: Column,
        name: Column,
        kind: Column,
        event: Column | None = None,
        until: Column | None = None,
    ) -> None:
        """Adds one track. `name` are numbers of `names_of`, `kind` are indices into KINDS. `until`: where a span ends
        for the layout, if it reaches a little over the next one of its row."""
        go_on()
        event = np.full(len(start), -1) if event is None else event
        order = np.lexsort((-end, start))
        depth = depths(start[order], (end if until is None else until)[order])
        kept = depth < DEEPEST
        self.too_deep += int((~kept).sum())
        order, depth = order[kept], depth[kept]
        order = order[np.argsort(depth, kind="stable")]
        self.tracks.append(Track(rank=rank, label=label, rows=np.bincount(depth, minlength=1).tolist()))
        for key, values in (
            ("start", start),
            ("length", end - start),
            ("name", name),
            ("kind", kind),
            ("event", event),
        ):
            self.columns[key].append(values[order])

    def take(self, other: Drawing) -> None:
        """Adds the tracks of another drawing, which must not be used afterwards."""
        numbers = self.names_of(list(other.names))
        other.columns["name"] = [numbers[names] for names in other.columns["name"]]
        for key, parts in other.columns.items():
            self.columns[key] += parts
        self.tracks += other.tracks
        self.too_deep += other.too_deep

    def as_spans(
        self, step: int, until: int, end: int, *, steps: list[StepMark], left_out: int, note: str = ""
    ) -> StepSpans:
        """All tracks together, without links."""
        nothing = np.empty(0, dtype=np.int64)
        start, length, name, kind, event = (
            np.concatenate(parts) if parts else nothing for parts in self.columns.values()
        )
        return StepSpans(
            step=step,
            until=until,
            end=end,
            names=list(self.names),
            tracks=self.tracks,
            steps=steps,
            start=start,
            length=length,
            name=name,
            kind=kind,
            event=event,
            link_from=nothing,
            link_to=nothing,
            link_kind=nothing,
            left_out=left_out + self.too_deep,
            note=note,
        )


def depths(starts: Column, ends: Column) -> Column:
    """The row of each span, if spans come in the order of their starts, longest first: the number of earlier spans that
    are still open. Two spans of a row do not overlap."""
    count = len(starts)
    # A span without a length takes a place of its own, too.
    until = np.maximum(ends, starts + 1)
    depth = np.arange(count) - np.searchsorted(np.sort(until), starts, side="right")
    order = np.argsort(depth, kind="stable")
    same = depth[order][1:] == depth[order][:-1]
    if not (same & (starts[order][1:] < until[order][:-1])).any():
        return depth
    return _stacked(starts.tolist(), until.tolist())  # spans that overlap without nesting


def _stacked(starts: list[int], ends: list[int]) -> Column:
    """Spans that overlap without nesting get rows of their own. Within a row, ends stay in order."""
    open_now: list[tuple[int, int]] = []  # ends and rows
    filled: list[int] = []  # the end of each row's last span
    found = []
    for start, end in paced(zip(starts, ends, strict=True)):
        while open_now and open_now[-1][0] <= start:
            open_now.pop()
        row = open_now[-1][1] + 1 if open_now else 0
        while row < len(filled) and filled[row] > start:
            row += 1
        if row < len(filled):
            filled[row] = end
        else:
            filled.append(end)
        found.append(row)
        open_now.append((end, row))
    return np.array(found, dtype=np.int64)
