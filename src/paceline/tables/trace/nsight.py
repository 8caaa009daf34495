"""Reads an Nsight Systems report that was exported to SQLite: `nsys export --type sqlite report.nsys-rep`.

Kernels, copies and sets, the calls that launched them, and NVTX ranges become the columns of a `Trace`, one per
process: the tables and the time line then need not know where a trace comes from. Tables and columns are those of
Nsight Systems 2021 and newer; an export has only the tables for which there was data.

A file may come from anywhere. It is opened for reading only, only its own tables are read (a view could compute for
ever), and long queries stop at the time limit.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from paceline.errors import PacelineError, TraceError
from paceline.record.inside import File
from paceline.tables.trace.columns import (
    EVENTS,
    KIND,
    LONGEST_NAME,
    MEMORY,
    MOST_EVENTS,
    MOST_NAMES,
    Trace,
    rank_in,
)
from paceline.tables.trace.time_limit import go_on

MAGIC = b"SQLite format 3\0"
RANGES = (59, 60, 70, 71)  # NVTX_EVENTS.eventType: push and pop, start and end, and both with extended payloads
COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # CUPTI's copyKind
PROCESS, THREAD = 24, 0xFFFFFF  # globalTid: 24 bits of the thread below 24 bits of the process
LONGEST_TEXT = 1 << 20  # bytes of a name
CHECKED = 200_000  # instructions of a query between two checks of the clock
_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")  # Nsight's names of calls end in the version of the interface

# Each table, the kind of its events, and the columns to read; the first column of a tuple that the table has is taken.
_TABLES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", {"named": ("demangledName", "shortName", "mangledName")}),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("copy", {"copy": ("copyKind",)}),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("set", {}),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("runtime", {"named": ("nameId",)}),
    "NVTX_EVENTS": ("mark", {"named": ("textId",), "text": ("text",), "type": ("eventType",)}),
}
_COLUMNS = {
    "begin": ("start",),
    "until": ("end",),
    "who": ("globalTid", "globalPid"),
    "device": ("deviceId",),
    "stream": ("streamId",),
    "correlation": ("correlationId",),
    "bytes": ("bytes",),
}
_ROW = {"kind": pl.String, "name": pl.String, **dict.fromkeys(("start", "end", "who"), pl.Int64)}
_ROW |= {**dict.fromkeys(("device", "stream"), pl.Int32), "correlation": pl.Int64, "bytes": pl.Int64}


def read_nsight(path: Path | File, *, most: int = MOST_EVENTS, more: str = "") -> list[Trace]:
    """One trace per process, in the order of process numbers. TraceError if the file is no export of Nsight Systems, or
    has more than `most` events; `more` is added to the advice."""
    with _opened(path) as base:
        listed = base.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        tables = {name for (name,) in listed}
        found = [name for name in _TABLES if name in tables]
        if not found:
            raise TraceError(
                f"{path} is an SQLite file, but no export of Nsight Systems: it has none of the tables "
                f"{', '.join(_TABLES)}.",
                advice="Export the report again, with CUDA or NVTX in it: nsys export --type sqlite report.nsys-rep",
            )
        count = sum(base.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in found)
        if count > most:
            raise TraceError(
                f"{path} has {count:,} events; the limit is {most:,}.", advice=f"Profile fewer steps{more}"
            )
        texts = dict(base.execute("SELECT id, CAST(value AS TEXT) FROM StringIds")) if "StringIds" in tables else {}
        if len(texts) > MOST_NAMES:
            raise TraceError(f"{path} has {len(texts):,} names; the limit is {MOST_NAMES:,}.")
        rows = pl.concat([_table(base, name, texts) for name in found])
        zero = _started(base, tables)
        labels = _labels(base, tables, texts)
    return _traces(path, rows, zero, labels)


@contextmanager
def _opened(path: Path | File) -> Iterator[sqlite3.Connection]:
    """The file as a data base. Whatever is wrong with it becomes a TraceError."""
    stopped: list[PacelineError] = []

    def check() -> int:
        try:
            go_on()
        except PacelineError as error:
            stopped.append(error)
            return 1
        return 0

    try:
        # A file of a record is opened within its folder; a file that a person named may be a link to anywhere.
        with path.open() if isinstance(path, File) else open(path, "rb") as file:
            base = sqlite3.connect(f"file:/proc/self/fd/{file.fileno()}?mode=ro&immutable=1", uri=True)
            try:
                base.execute("PRAGMA trusted_schema = OFF")
                base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
                base.set_progress_handler(check, CHECKED)
                yield base
            finally:
                base.close()
    except (sqlite3.Error, OverflowError) as error:
        if stopped:
            raise stopped[0] from error
        raise TraceError(
            f"{path} is damaged: {error}.", advice="Export it again: nsys export --type sqlite report.nsys-rep"
        ) from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error


def _table(base: sqlite3.Connection, table: str, texts: dict[int, str]) -> pl.DataFrame:
    kind, special = _TABLES[table]
    known = {name for _, name, *_ in base.execute(f"PRAGMA table_info({table})")}
    wanted = {**_COLUMNS, **special}
    chosen = {key: next((name for name in names if name in known), None) for key, names in wanted.items()}
    if chosen["begin"] is None or chosen["until"] is None:
        raise TraceError(f"The table {table} has no columns start and end: Nsight Systems did not write this file.")

    def column(key: str, name: str | None) -> str:
        if key == "text":
            return f'CAST("{name}" AS TEXT)' if name else "NULL"
        return f'CAST(COALESCE("{name}", -1) AS INTEGER)' if name else "-1"

    query = f"SELECT {', '.join(column(key, name) for key, name in chosen.items())} FROM {table}"
    query += ' WHERE "start" IS NOT NULL AND "end" IS NOT NULL'  # a range that was still open has no end
    if chosen.get("type"):
        query += f" AND eventType IN {RANGES}"
    keys, rows = list(chosen), []
    for values in base.execute(query):
        told = dict(zip(keys, values, strict=True))
        name = _name(kind, told, texts)
        rows.append(
            (kind, name, *(told[key] for key in ("begin", "until", "who", "device", "stream", "correlation", "bytes")))
        )
    frame = pl.DataFrame(rows, schema=_ROW, orient="row", strict=False)
    return frame.filter((pl.col("end") >= pl.col("start")) & pl.col("who").is_not_null())


def _name(kind: str, told: dict[str, Any], texts: dict[int, str]) -> str:
    if kind == "copy":
        return f"Memcpy {COPIES.get(told['copy'], 'of kind ' + str(told['copy']))}"
    if kind == "set":
        return "Memset"
    name = told.get("text") or texts.get(told["named"]) or "(without a name)"
    return (_VERSION.sub("", name) if kind == "runtime" else name)[:LONGEST_NAME]


def _started(base: sqlite3.Connection, tables: set[str]) -> int:
    """When the session began: nanoseconds since the epoch. Zero if that is not known."""
    if "TARGET_INFO_SESSION_START_TIME" not in tables:
        return 0
    found = base.execute("SELECT CAST(utcEpochNs AS INTEGER) FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return max(int(found[0]), 0) if found and found[0] is not None else 0


def _labels(base: sqlite3.Connection, tables: set[str], texts: dict[int, str]) -> dict[tuple[int, int], str]:
    """Names of threads, by process and thread."""
    if "ThreadNames" not in tables:
        return {}
    rows = base.execute("SELECT CAST(globalTid AS INTEGER), CAST(nameId AS INTEGER) FROM ThreadNames").fetchall()
    return {
        ((who >> PROCESS) & THREAD, who & THREAD): f"{texts[name][:100]} {who & THREAD}"
        for who, name in rows
        if who is not None and name in texts
    }


def _traces(path: Path | File, rows: pl.DataFrame, zero: int, labels: dict[tuple[int, int], str]) -> list[Trace]:
    rows = rows.with_columns(
        # A kernel has the number of its process only, which is that of a thread with the lower bits zero.
        ((pl.col("who") // (1 << PROCESS)) % (1 << PROCESS)).alias("process"),
        (pl.col("who") % (1 << PROCESS)).alias("thread"),
    ).sort("start", maintain_order=True)
    processes = rows.partition_by("process", maintain_order=True)
    processes.sort(key=lambda mine: int(mine["process"][0]))
    return [
        Trace(
            path=path,
            rank=(rank_in(path.name) or 0) if len(processes) == 1 else number,
            world=len(processes),
            base=zero,
            events=_events(mine),
            memory=pl.DataFrame(schema=MEMORY),
            threads=labels,
        )
        for number, mine in enumerate(processes)
    ]


def _events(rows: pl.DataFrame) -> pl.DataFrame:
    names = rows["name"].unique(maintain_order=True)
    nothing = pl.Series([""]).cast(pl.Enum([""]))
    values = {
        "kind": rows["kind"].cast(KIND),
        "name": rows["name"].cast(pl.Enum(names)),
        **{name: nothing.new_from_index(0, rows.height) for name in ("shapes", "types")},
    }
    return pl.DataFrame(
        [
            values[name].alias(name)
            if name in values
            else rows[name].cast(dtype)
            if name in rows.columns
            else pl.Series(name, [-1], dtype=dtype).new_from_index(0, rows.height)
            for name, dtype in EVENTS.items()
        ]
    )
