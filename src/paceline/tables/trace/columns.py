"""One rank's trace as columns: the input of every table.

`read_trace` reads files that torch.profiler wrote, here or elsewhere. Repeated strings (names, shapes) are stored as
numbers into a list; times are whole nanoseconds, as in torch; absent values are -1. An event of about 400 bytes of JSON
takes about 80 bytes of memory.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from paceline.errors import TraceError
from paceline.record.inside import File
from paceline.record.phases import CHECK
from paceline.tables.trace.intervals import Integers, Spans
from paceline.tables.trace.json_reader import FOREIGN, NOTHING, Args, Event, ForeignEvents, Head, JsonStream, Number
from paceline.tables.trace.nesting import calls

# Torch's names for the kinds of events, current and older.
KINDS = {
    "cpu_op": "op",
    "Operator": "op",
    "user_annotation": "mark",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "Runtime": "runtime",
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "set",
    "Memset": "set",
    "python_function": "python",
    "cuda_sync": "sync",
    FOREIGN: "event",
}
KIND = pl.Enum(list(dict.fromkeys(KINDS.values())))
ON_DEVICE = ("kernel", "copy", "set")
ON_HOST = ("op", "mark", "runtime")
LONGEST_NAME = 2000  # characters: names of C++ templates may be longer, and the rest is never read
LATEST = 4 * 10**15  # microseconds: the year 2096
MOST_EVENTS = 100_000_000  # per file: 8 GB of columns
MOST_NAMES = 500_000  # different names per file; the same limit for shapes and for types
MOST_TEXT = 256 << 20  # characters of all different names together

_WIDTHS = {"long": 8, "double": 8, "int": 4, "float": 4, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "bool": 1}
_NO_ARGS = Args()


@dataclass(frozen=True)
class Trace:
    """The events of one rank.

    `events`, in the file's order: kind (op, mark, runtime, kernel, copy, set, python, sync, event), name, start, end
    (nanoseconds since `base`, which is Unix time), process, thread, device, stream, correlation (joins a launch to its
    kernel), external (joins an op to its launches and kernels), sequence and forward_thread (join a backward op to its
    forward op), bytes, shapes, types. A trace that torch did not write has events of the kind `event` only.

    `memory`: time, device (-1: the host), bytes (below zero: freed), address, allocated, reserved.

    `threads`: labels of threads, by process and thread, where the file has its own.
    """

    path: Path | File
    rank: int
    world: int
    base: int
    events: pl.DataFrame
    memory: pl.DataFrame
    head: Head = field(default_factory=Head)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    ahead: int = 0  # nanoseconds by which the clock of its host was ahead, and that were taken from `base`

    @cached_property
    def checks(self) -> Spans:
        """The times of Paceline's own checks."""
        marks = self.events.filter((pl.col("kind") == "mark") & (pl.col("name").cast(pl.String) == CHECK))
        return Spans.of(marks["start"].to_numpy(), marks["end"].to_numpy())

    @cached_property
    def counted(self) -> pl.DataFrame:
        """The events that tables count: all but those inside checks. The mark of a check stays, so that its time is no
        part of its caller's own time. An event of a device belongs to the check that launched it."""
        if not len(self.checks):
            return self.events
        start, launched = self.events["start"].to_numpy(), self.launch_times(self.events)
        on_device = self.events["kind"].is_in(ON_DEVICE).to_numpy()
        is_inside = self.checks.covered(np.where(on_device & (launched >= 0), launched, start))
        is_mark = (self.events["kind"] == "mark").to_numpy() & np.isin(start, self.checks.starts)
        return self.events.filter(pl.Series(~is_inside | is_mark, dtype=pl.Boolean))

    @cached_property
    def host(self) -> pl.DataFrame:
        """Ops, marks and runtime calls."""
        return self.counted.filter(pl.col("kind").is_in(ON_HOST))

    @cached_property
    def device(self) -> pl.DataFrame:
        """Kernels, copies and sets, in order of their start."""
        return self.counted.filter(pl.col("kind").is_in(ON_DEVICE)).sort("start")

    @cached_property
    def calls(self) -> pl.DataFrame:
        """Every call on the host, with its caller and its device work: see `nesting`."""
        return calls(self.host, self.device)

    def launch_times(self, rows: pl.DataFrame) -> Integers:
        """When the host began to launch each of these device events; -1 if the trace does not say."""
        launches = (
            self.events.filter((pl.col("kind") == "runtime") & (pl.col("correlation") > 0))
            .select("correlation", launched="start")
            .unique("correlation", keep="first")
        )
        joined = rows.select("correlation").join(launches, on="correlation", how="left", maintain_order="left")
        return joined["launched"].fill_null(-1).to_numpy()

    @property
    def has_device(self) -> bool:
        return self.device.height > 0

    @property
    def has_stack(self) -> bool:
        return bool((self.events["kind"] == "python").any())


class TooManyNames(Exception):
    """Caught by `read_trace`, which knows the file's name."""


class _Numbers(dict[Any, int]):
    """Numbers keys in the order of their first use."""

    length = 0  # characters of all keys

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        self.length += len(key)
        if number >= MOST_NAMES or self.length > MOST_TEXT:
            raise TooManyNames
        return number


class _Codes:
    """Strings, numbered in the order of their first use. Number 0 is the empty string."""

    def __init__(self) -> None:
        self.numbers = _Numbers({"": 0})

    def of(self, values: Iterable[Any]) -> np.ndarray[Any, Any]:
        return _narrow(list(map(self.numbers.__getitem__, values)))

    def of_raw(self, values: Iterable[Any]) -> np.ndarray[Any, Any]:
        """Numbers of raw JSON values, most of which are absent."""
        numbers = self.numbers
        return _narrow([0 if value is NOTHING else numbers[bytes(value)] for value in values])

    def column(self, name: str, parts: Sequence[np.ndarray[Any, Any]]) -> pl.Series:
        codes = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)
        texts = [bytes(v).decode(errors="replace") if not isinstance(v, str) else v for v in self.numbers]
        shortened = pl.Series([text[:LONGEST_NAME] for text in texts], dtype=pl.String)
        # Two long names may become equal when shortened, and categories must be unique.
        return shortened.cast(pl.Enum(shortened.unique(maintain_order=True))).gather(codes).alias(name)


class _Columns:
    """Collects chunks of events."""

    def __init__(self, path: Path | File, most: int, more: str) -> None:
        self.path = path
        self.most, self._more = most, more
        self.count = 0
        self.names, self.shapes, self.types = _Codes(), _Codes(), _Codes()
        self.parts: dict[str, list[np.ndarray[Any, Any]]] = {}
        self.memory: list[tuple[int, int, int, int, int, int]] = []
        self.zero = 0  # whole microseconds, subtracted before times become nanoseconds: a float has 53 bits
        self.foreign = ForeignEvents(KINDS)

    def add(self, events: list[Event]) -> None:
        if not self.count and not self.memory:
            first = next((event.ts for event in events if event.ph in ("X", "B")), 0)
            self.zero = math.floor(min(max(first, -LATEST), LATEST))
        kinds = KINDS
        kept = [event for event in events if event.ph == "X" and event.cat in kinds]
        if len(kept) < len(events):
            kept += self.foreign.of(events)
        self.memory += [_memory(e, self.zero) for e in events if e.ph == "i" and e.name == "[memory]" and e.args]
        self.count += len(kept)
        if self.count + len(self.memory) > self.most:
            raise TraceError(
                f"{self.path} has more than {self.most:,} events.",
                advice=f"Trace fewer steps: paceline profile --steps 3{self._more}",
            )
        if not kept:
            return
        start = _nanoseconds([event.ts for event in kept], self.zero) + self.zero * 1000
        kind = np.frombuffer(bytes([_KIND_CODES[event.cat] for event in kept]), np.uint8)
        self._put("kind", kind)
        self._put("name", self.names.of([event.name for event in kept]))
        self._put("start", start)
        self._put("end", start + np.maximum(_nanoseconds([event.dur for event in kept], 0), 0))
        self._put("process", _integers([event.pid for event in kept]))
        self._put("thread", _integers([event.tid for event in kept]))
        args = [event.args or _NO_ARGS for event in kept]
        external = _integers([a.external for a in args])
        if (external < 0).all():
            external = _integers([a.external_before for a in args])
        self._put("external", external)
        # Arguments that only some kinds have are read for those only: reading attributes is most of the work here.
        called, rest = kind <= _LAST_CALLED, np.flatnonzero(kind > _LAST_CALLED)
        self._put_of_calls(np.flatnonzero(called), args)
        self._put_of_others(rest, args)

    def _put_of_calls(self, rows: Integers, args: list[Args]) -> None:
        """Columns of ops and marks."""
        some, count = [args[row] for row in rows.tolist()], len(args)
        self._put("sequence", _spread(_integers([a.sequence for a in some]), rows, count))
        self._put("forward_thread", _spread(_integers([a.forward_thread for a in some]), rows, count))
        self._put("shapes", _spread(self.shapes.of_raw([a.shapes for a in some]), rows, count, nothing=0))
        self._put("types", _spread(self.types.of_raw([a.types for a in some]), rows, count, nothing=0))

    def _put_of_others(self, rows: Integers, args: list[Args]) -> None:
        """Columns of launches, and of the events they launched."""
        some, count = [args[row] for row in rows.tolist()], len(args)
        self._put("device", _spread(_integers([a.device for a in some], np.int32), rows, count))
        self._put("stream", _spread(_integers([a.stream for a in some], np.int32), rows, count))
        self._put("correlation", _spread(_integers([a.correlation for a in some]), rows, count))
        size = _integers([a.nbytes for a in some])
        for row in np.flatnonzero(_integers([a.elements for a in some]) >= 0):
            size[row] = _message(some[row])
        self._put("bytes", _spread(size, rows, count))

    def _put(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self.parts.setdefault(name, []).append(values)

    def frame(self) -> pl.DataFrame:
        coded = {"name": self.names, "shapes": self.shapes, "types": self.types}
        columns = []
        for name, dtype in EVENTS.items():
            parts = self.parts.pop(name, [])
            if name in coded:
                columns.append(coded[name].column(name, parts))
            else:
                values = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)
                if dtype == KIND:
                    columns.append(KIND.categories.cast(KIND).gather(values).alias(name))
                else:
                    columns.append(pl.Series(name, values, dtype=dtype))
        made = pl.DataFrame(columns)
        foreign = made["kind"] == "event"
        if foreign.any() and not foreign.all():  # torch wrote the file: what its tables do not know is left out
            return made.filter(~foreign)
        return made

    def memory_frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.memory, schema=MEMORY, orient="row")


EVENTS: dict[str, Any] = {
    "kind": KIND,
    "name": pl.Enum,
    **dict.fromkeys(("start", "end", "process", "thread"), pl.Int64),
    **dict.fromkeys(("device", "stream"), pl.Int32),
    **dict.fromkeys(("correlation", "external", "sequence", "forward_thread", "bytes"), pl.Int64),
    "shapes": pl.Enum,
    "types": pl.Enum,
}
MEMORY = {
    "time": pl.Int64,
    "device": pl.Int32,
    "bytes": pl.Int64,
    "address": pl.UInt64,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}
_KIND_CODES = {cat: KIND.categories.to_list().index(kind) for cat, kind in KINDS.items()}
_LAST_CALLED = _KIND_CODES["user_annotation"]  # ops and marks come first


def read_trace(path: Path | File, rank: int | None = None, *, most: int = MOST_EVENTS, more: str = "") -> Trace:
    """Reads a trace. TraceError if the file is no trace, or has more than `most` events; `more` is added to the advice.
    The rank is the given one, the one in the file, the one in its name, or 0."""
    stream, columns = JsonStream(path), _Columns(path, most, more)
    try:
        for events in stream:
            columns.add(events)
    except TooManyNames as error:
        raise TraceError(
            f"{path} has more than {MOST_NAMES:,} different names, shapes or types, or {MOST_TEXT >> 20} Mi characters "
            "of them.",
            advice="Remove numbers (a step, an address) from the names of your marks.",
        ) from error
    head = stream.head
    told = head.paceline.get("rank", head.distributed.get("rank"))
    if rank is None:
        rank = told if isinstance(told, int) else rank_in(path.name)
    world = head.paceline.get("world", head.distributed.get("world_size"))
    frame = columns.frame()
    return Trace(
        path=path,
        rank=rank or 0,
        world=world if isinstance(world, int) else 1,
        base=int(head.base),
        events=frame,
        memory=columns.memory_frame(),
        head=head,
        threads=columns.foreign.labels(frame.select("process", "thread").unique(maintain_order=True).rows()),
    )


def arrange(traces: list[Trace]) -> list[Trace]:
    """The traces in order of their ranks; if ranks are missing or equal, traces are numbered as given."""
    if len({trace.rank for trace in traces}) < len(traces):
        traces = [Trace(**{**_fields(trace), "rank": number}) for number, trace in enumerate(traces)]
    return sorted(traces, key=lambda trace: trace.rank)


def rank_in(name: str) -> int | None:
    """The rank in a file's name; None if there is none."""
    found = re.search(r"rank[^0-9a-z]?(\d{1,6})(?!\d)", name)
    return int(found.group(1)) if found else None


def _fields(trace: Trace) -> dict[str, Any]:
    return {name: getattr(trace, name) for name in Trace.__dataclass_fields__}


def _nanoseconds(microseconds: list[int | float], zero: int) -> np.ndarray[Any, Any]:
    """Nanoseconds since `zero`. An impossible time (1e300) is clipped to `LATEST`."""
    values = np.array(microseconds)
    if values.dtype.kind == "i":
        return (np.clip(values, -LATEST, LATEST) - zero) * 1000
    return np.rint((np.clip(values.astype(np.float64), -LATEST, LATEST) - zero) * 1000.0).astype(np.int64)


def _spread(values: Any, rows: Integers, count: int, nothing: int = -1) -> np.ndarray[Any, Any]:
    """An array with these values in these rows, and `nothing` in the others."""
    found = np.full(count, nothing, dtype=values.dtype)
    found[rows] = values
    return found


def _narrow(values: list[int]) -> np.ndarray[Any, Any]:
    """As 32 bits, by way of 64 bits, which takes numpy a third of the time of the direct conversion."""
    return np.array(values, np.int64).astype(np.uint32)


def _integers(values: list[Number], dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    """Integers from mostly integers and None; anything else becomes -1."""
    try:
        # `array` accepts integers only; numpy would also convert texts, and scans all values twice for their type.
        found = np.asarray(array("q", values))  # type: ignore[type-var]
        if dtype is np.int64 or (found == found.astype(dtype)).all():
            return found.astype(dtype, copy=False)
    except (TypeError, OverflowError):
        pass
    return np.array([_integer(value, np.iinfo(dtype).max) for value in values], dtype=dtype)


def _integer(value: Number, most: int) -> int:
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 20 else -1
    if value is None or not -most <= value <= most or value != value:
        return -1
    return int(value)


def _message(args: Args) -> int:
    """The size in bytes of a collective's message."""
    name = str(args.element).lower()
    width = next((width for kind, width in _WIDTHS.items() if kind in name), 4)
    return _integer(args.elements, 2**50) * width


def _memory(event: Event, zero: int) -> tuple[int, int, int, int, int, int]:
    args = event.args or _NO_ARGS
    most = 2**62
    return (
        round((min(max(event.ts, -LATEST), LATEST) - zero) * 1000) + zero * 1000,
        _integer(args.memory_device, 2**30) if args.memory_kind not in (0, None) else -1,
        _signed(args.memory, most),
        max(_integer(args.address, 2**63), 0),
        _signed(args.allocated, most),
        _signed(args.reserved, most),
    )


def _signed(value: Number, most: int) -> int:
    return int(value) if isinstance(value, int | float) and -most < value < most else 0
