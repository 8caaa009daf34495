"""Several traces, read at the same time: by as many processes as there are cores, this one among them.

Decoding JSON holds Python's lock, so threads would not help. A child is started with a command line of its own, not
forked: polars has threads. It reads its share of the files, and sends the columns back through a pipe.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec
import polars as pl

from paceline.errors import TraceError
from paceline.tables.stream import Head
from paceline.tables.trace import Trace, arrange, read_trace

HEAD_START = 3 << 20  # bytes of compressed files that are read here while a child starts
WORTH_IT = 2 * HEAD_START  # bytes: with less there is nothing to share out


class _Told(msgspec.Struct):
    """What a child says before it sends columns, or instead of them."""

    rank: int | None = None
    world: int = 1
    base: int = 0
    head: Head = msgspec.field(default_factory=Head)
    events: int = 0  # bytes
    memory: int = 0
    error: str = ""
    advice: str = ""


def read_together(paths: Sequence[Path]) -> list[Trace]:
    """As `read_traces`: one a rank, by rank. TraceError of a file that is damaged."""
    cores = len(os.sched_getaffinity(0))
    if len(paths) < 2 or cores < 2 or sum(_size(path) for path in paths) < WORTH_IT or not sys.executable:
        return arrange([read_trace(path) for path in paths])
    ours, *theirs = _shares(paths, min(cores, len(paths)))
    children = [_start(share) for share in theirs]
    try:
        # Threads hold what comes out of the pipes; else a child would wait for us to read it.
        with ThreadPoolExecutor(len(children)) as pool:
            arriving = [pool.submit(_receive, child, share) for child, share in zip(children, theirs, strict=True)]
            found = {path: read_trace(path) for path in ours}
            for traces in arriving:
                found |= traces.result()
    except BaseException:
        for child in children:
            child.kill()
        raise
    finally:
        for child in children:
            child.wait()
    return arrange([found[path] for path in paths])


def _shares(paths: Sequence[Path], count: int) -> list[list[Path]]:
    """The files dealt out, largest first, each to whom has least; the first share is this process's own."""
    shares: list[list[Path]] = [[] for _ in range(count)]
    given = [0.0, *[float(HEAD_START)] * (count - 1)]
    for path in sorted(dict.fromkeys(paths), key=_size, reverse=True):
        least = given.index(min(given))
        shares[least].append(path)
        given[least] += _size(path)
    return [shares[0], *(share for share in shares[1:] if share)]


def _start(share: list[Path]) -> subprocess.Popen[bytes]:
    # Where this package is, a child finds it, whatever the current folder is.
    code = f"import sys; sys.path[:] = {sys.path!r}; from paceline.tables.together import main; main(sys.argv[1:])"
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", code, *map(str, share)]
    return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.DEVNULL)


def _receive(child: subprocess.Popen[bytes], share: list[Path]) -> dict[Path, Trace]:
    assert child.stdout is not None
    found = {}
    with child.stdout as pipe:
        for path in share:
            head = pipe.read(8)
            told = msgspec.json.decode(pipe.read(int.from_bytes(head, "little")) or b"{}", type=_Told)
            if told.error:
                raise TraceError(told.error, advice=told.advice)
            events, memory = pipe.read(told.events), pipe.read(told.memory)
            if not told.events or len(memory) < told.memory:
                raise TraceError(f"The process that reads {path} has ended.", advice="Is there memory enough for it?")
            found[path] = Trace(
                path=Path(path),
                rank=told.rank or 0,
                world=told.world,
                base=told.base,
                events=pl.read_ipc(io.BytesIO(events)),
                memory=pl.read_ipc(io.BytesIO(memory)),
                head=told.head,
            )
    return found


def main(paths: Sequence[str], out: IO[bytes] = sys.stdout.buffer) -> None:
    """A child's part."""
    for path in paths:
        try:
            trace = read_trace(Path(path))
        except TraceError as error:
            _send(out, _Told(error=error.message, advice=error.advice))
            return
        events, memory = io.BytesIO(), io.BytesIO()
        trace.events.write_ipc(events)
        trace.memory.write_ipc(memory)
        told = _Told(rank=trace.rank, world=trace.world, base=trace.base, head=trace.head)
        told.events, told.memory = events.tell(), memory.tell()
        _send(out, told)
        out.write(events.getbuffer())
        out.write(memory.getbuffer())
        out.flush()


def _send(out: IO[bytes], told: _Told) -> None:
    text = msgspec.json.encode(told)
    out.write(len(text).to_bytes(8, "little") + text)
    out.flush()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
