"""Opens a trace of any kind: torch's and other programs' JSON, or an export of Nsight Systems."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import TraceError
from paceline.record.inside import File
from paceline.tables.trace.columns import MOST_EVENTS, Trace, read_trace
from paceline.tables.trace.json_reader import JsonStream
from paceline.tables.trace.nsight import MAGIC, read_nsight


def read_traces(path: Path | File, *, most: int = MOST_EVENTS, more: str = "") -> list[Trace]:
    """The traces of a file: one, or one per process in an export of Nsight Systems. Raises like `read_trace`."""
    if is_sqlite(path):
        return read_nsight(path, most=most, more=more)
    return [read_trace(path, most=most, more=more)]


def is_sqlite(path: Path | File) -> bool:
    return _first(path).startswith(MAGIC)


def prove_trace(path: Path) -> str:
    """The ending that a record gives to this file: `sqlite`, or `json.gz`, compressed or not. TraceError if the file
    does not begin as a trace does. Reads no more than that."""
    first = _first(path)
    if first.startswith(MAGIC):
        return "sqlite"
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise TraceError(
            f"{path} is a report of Nsight Systems, which only Nsight Systems can read.",
            advice=f"Export it: nsys export --type sqlite {path}",
        )
    if first[:1] == b"\n":  # the first field of a message of Perfetto's, in protobuf's format
        raise TraceError(
            f"{path} is a trace in Perfetto's binary format.",
            advice=f"Convert it with Perfetto's traceconv: traceconv json {path} trace.json",
        )
    if path.suffix == ".py":
        raise TraceError(f"{path} is a Python script, and not a trace.", advice=f"Type: paceline profile {path}")
    events = iter(JsonStream(path))
    try:
        next(events, None)
    finally:
        events.close()  # type: ignore[attr-defined]
    return "json.gz"


def _first(path: Path | File) -> bytes:
    try:
        with path.open() if isinstance(path, File) else open(path, "rb") as file:
            return file.read(len(MAGIC))
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}.",
            advice="Name a file that torch.profiler wrote: .json or .json.gz; or an SQLite export of Nsight Systems.",
        ) from error
