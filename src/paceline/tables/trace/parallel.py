"""Reads several traces at the same time: in as many processes as there are cores, including this one.

Decoding JSON holds the GIL, so threads would not help. A child is started as a new process, not forked, because polars
has threads. Files wait in one queue, largest first; this process takes files from the start on, a child once it is
ready. So each process takes only as many files as it can read, however busy its core is. A child sends the columns back
through a pipe.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec
import polars as pl

from paceline.errors import PacelineError, TraceError
from paceline.record.inside import File, Folder
from paceline.tables.trace.columns import MOST_EVENTS, Trace, arrange, read_trace
from paceline.tables.trace.json_reader import Head, JsonStream
from paceline.tables.trace.kept import read_kept
from paceline.tables.trace.nsight import MAGIC, read_nsight

WORTH_IT = 6 << 20  # bytes of compressed files: with less, no work is left when a child is ready
READY = b"!"  # a child's first byte


class _Message(msgspec.Struct):
    """A child's message before the columns, or instead of them."""

    rank: int | None = None
    world: int = 1
    base: int = 0
    head: Head = msgspec.field(default_factory=Head)
    events: int = 0  # bytes
    memory: int = 0
    threads: list[tuple[int, int, str]] = []
    error: str = ""
    advice: str = ""


def read_together(paths: Sequence[Path | File]) -> list[Trace]:
    """One trace per rank, sorted by rank. TraceError if a file is damaged."""
    known = {path: trace for path in paths if (trace := read_kept(path, most=MOST_EVENTS)) is not None}
    fresh = [path for path in paths if path not in known]
    return arrange([*known.values(), *_parsed_together(fresh)])


def _parsed_together(paths: Sequence[Path | File]) -> list[Trace]:
    """The traces of these files, in this order; all of them if a file holds several."""
    cores = len(os.sched_getaffinity(0))
    few = len(paths) < 2 or cores < 2 or sum(_size(path) for path in paths) < WORTH_IT or not sys.executable
    if few or any(map(is_sqlite, paths)):
        return [trace for path in paths for trace in read_traces(path)]
    waiting = deque(sorted(dict.fromkeys(paths), key=_size, reverse=True))
    children = [_Child() for _ in range(min(cores, len(waiting)) - 1)]
    try:
        # The threads drain the pipes; otherwise a child would block until this process reads.
        with ThreadPoolExecutor(max(len(children), 1)) as pool:
            arriving = [pool.submit(child.read, waiting) for child in children]
            try:
                found = _read_here(waiting)
                for child in children:
                    child.no_longer_needed()
                for traces in arriving:
                    found |= traces.result()
            except BaseException:
                waiting.clear()
                for child in children:
                    child.process.kill()
                raise
    finally:
        for child in children:
            child.process.wait()
    return [found[path] for path in paths]


def _read_here(waiting: deque[Path | File]) -> dict[Path | File, Trace]:
    found = {}
    while (path := _next(waiting)) is not None:
        found[path] = read_trace(path)
    return found


def _next(waiting: deque[Path | File]) -> Path | File | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


class _Child:
    """A child process that reads traces."""

    def __init__(self) -> None:
        # Passes sys.path, so that a child finds this package whatever the current folder is.
        code = f"import sys; sys.path[:] = {sys.path!r}; from paceline.tables.trace.parallel import main; main()"
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=nowhere)
        self._begun = False

    def no_longer_needed(self) -> None:
        """The queue is empty: stops a child that is not ready yet."""
        if not self._begun:
            self.process.kill()

    def read(self, waiting: deque[Path | File]) -> dict[Path | File, Trace]:
        """Lets the child read files from the queue, one after the other; blocks."""
        try:
            return self._read(waiting)
        except TraceError:
            waiting.clear()
            raise
        finally:
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    assert pipe is not None
                    pipe.close()

    def _read(self, waiting: deque[Path | File]) -> dict[Path | File, Trace]:
        found: dict[Path | File, Trace] = {}
        to, back = self.process.stdin, self.process.stdout
        assert to is not None
        assert back is not None
        if back.read(len(READY)) != READY:
            return found  # a child that cannot start does no harm: this process reads the files
        self._begun = True
        while (path := _next(waiting)) is not None:
            with contextlib.suppress(BrokenPipeError):
                _send(to, _encode_path(path))
            found[path] = _receive(back, path)
        return found


def _receive(pipe: IO[bytes], path: Path | File) -> Trace:
    told = msgspec.json.decode(_read_message(pipe) or b"{}", type=_Message)
    if told.error:
        raise TraceError(told.error, advice=told.advice)
    events, memory = pipe.read(told.events), pipe.read(told.memory)
    if not told.events or len(memory) < told.memory:
        raise TraceError(f"{path} was not read: the process that read it has ended.", advice="Is memory exhausted?")
    return Trace(
        path=path,
        rank=told.rank or 0,
        world=told.world,
        base=told.base,
        events=pl.read_ipc(io.BytesIO(events)),
        memory=pl.read_ipc(io.BytesIO(memory)),
        head=told.head,
        threads={(process, thread): label for process, thread, label in told.threads},
    )


def main() -> None:
    """The entry point of a child process."""
    paths, out = sys.stdin.buffer, sys.stdout.buffer
    out.write(READY)
    out.flush()
    while path := _read_message(paths):
        try:
            trace = read_trace(_decode_path(path))
        except PacelineError as error:
            _send(out, msgspec.json.encode(_Message(error=error.message, advice=error.advice)))
            return
        events, memory = io.BytesIO(), io.BytesIO()
        trace.events.write_ipc(events)
        trace.memory.write_ipc(memory)
        told = _Message(rank=trace.rank, world=trace.world, base=trace.base, head=trace.head)
        told.events, told.memory = events.tell(), memory.tell()
        told.threads = [(*who, label) for who, label in trace.threads.items()]
        _send(out, msgspec.json.encode(told))
        out.write(events.getbuffer())
        out.write(memory.getbuffer())
        out.flush()


def _send(out: IO[bytes], text: bytes) -> None:
    out.write(len(text).to_bytes(8, "little") + text)
    out.flush()


def _read_message(pipe: IO[bytes]) -> bytes:
    """The next message; empty if the other side has ended."""
    return pipe.read(int.from_bytes(pipe.read(8), "little"))


def _encode_path(path: Path | File) -> bytes:
    """Encodes a path for a child: the path, or the folder and the parts below it."""
    if isinstance(path, File):
        return b"\0".join(map(os.fsencode, (str(path.folder.base), *path.folder.parts, path.name)))
    return os.fsencode(path)


def _decode_path(spelled: bytes) -> Path | File:
    base, *parts = map(os.fsdecode, spelled.split(b"\0"))
    return Folder(Path(base)).folder(*parts[:-1]).file(parts[-1]) if parts else Path(base)


def _size(path: Path | File) -> int:
    try:
        told = path.stat()
    except OSError:
        return 0
    return told.st_size if told is not None else 0


# -- traces of any kind -----------------------------------------------------------------------------------------------


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
