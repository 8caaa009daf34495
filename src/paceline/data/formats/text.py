"""Reads the lines of text files, plain or compressed.

Plain text has no checksum: a wrong byte is delivered as a wrong letter. In a compressed file a wrong byte is found at
the end of the file at the latest.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

from paceline.data.error_policy import LostSamples, Policy
from paceline.data.formats.compression import DamageError, Stream, open_stream
from paceline.data.size_limits import LINE, too_large
from paceline.errors import DataError

BLOCK = 1 << 18  # bytes that are read at once
SKIP = "on_error='skip', or 'warn' for warnings."


def read(path: Any, start: int, policy: Policy, losses: LostSamples, max_bytes: int = LINE) -> Iterator[list[str]]:
    """A file's lines from number `start` on, in chunks, without line ends."""
    stream = open_stream(path, by_name=True)
    try:
        for lines in Lines(os.fspath(path), stream, policy, losses, max_bytes).chunks():
            kept = lines[start:]
            start -= len(lines) - len(kept)
            if kept:
                yield [line.decode("utf-8", errors="replace").rstrip("\r") for line in kept]
    finally:
        stream.close()


class Lines:
    """The lines of one file. `number` lines have ended so far."""

    def __init__(self, path: str, stream: Stream, policy: Policy, losses: LostSamples, max_bytes: int) -> None:
        self._path, self._stream, self._policy, self._losses = path, stream, policy, losses
        self._limit = max_bytes
        self.number = 0
        self._rest, self._held = io.BytesIO(), 0  # start of a line whose end is not read yet

    def chunks(self) -> Iterator[list[bytes]]:
        """Chunks of whole lines; the last line needs no line end."""
        try:
            while block := self._stream.read(BLOCK):
                first, *more = block.split(b"\n")
                self._hold(first)
                if more:
                    last = more.pop()
                    yield [*self._ended(), *more]
                    self.number += len(more)
                    self._hold(last)
            if self._held:
                yield self._ended()
        except DamageError as error:
            self._lose(str(error))
        except MemoryError:
            self._lose("there is not enough memory for the next line")

    def _hold(self, part: bytes) -> None:
        """Keeps the start of a line. A line over the limit is dropped and reported, and reading continues to its
        end."""
        before = self._held
        self._held += len(part)
        if self._held <= self._limit:
            self._rest.write(part)
        elif before <= self._limit:
            self._rest = io.BytesIO()
            what = f"{self._path}: line {self.number + 1}, {self._stream.place(self._stream.offset)},"
            otherwise = f"Or leave such lines out: {SKIP}"
            error = too_large(what, self._held, self._limit, "max_bytes={}", otherwise=otherwise, so_far=True)
            self._losses.lose(error, self._policy)

    def _ended(self) -> list[bytes]:
        """The line that has ended; nothing if the line was over the limit."""
        found = [self._rest.getvalue()] if self._held <= self._limit else []
        self._rest, self._held = io.BytesIO(), 0
        self.number += 1
        return found

    def _lose(self, why: str) -> None:
        more = "" if self._policy == "raise" else " The rest of the file is lost as well."
        where = f"{self._path}, after line {self.number}, {self._stream.place(self._stream.offset)}"
        advice = f"Write the file again, or read only the lines before the damage: {SKIP}"
        self._losses.lose(DataError(f"{where}: {why}.{more}", advice=advice), self._policy)
