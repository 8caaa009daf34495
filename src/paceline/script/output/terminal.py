"""The terminal as the script sees it: one standard input for all workers, and the size of the terminal.

Rank 0's standard input is read once, when a script asks for it, and every worker gets the same bytes. So `input()`,
`sys.stdin.read()` and `for line in sys.stdin` take the same branch on every worker.

A worker's standard output is a pipe or a log, which has no size: `os.get_terminal_size` returns that of the terminal to
which the launcher writes. Reads past `sys.stdin` (`os.read(0, …)`, child processes) are rank 0's alone.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.comm.group import Group

CHUNK = 8192  # bytes: most that one read takes


def install(group: Group, sizes: Mapping[int, Sequence[int]]) -> None:
    """Patches this process. `sizes`: columns and lines of the launcher's output streams that are terminals."""
    if group.world > 1 and sys.stdin is not None:
        encoding, errors = getattr(sys.stdin, "encoding", None), getattr(sys.stdin, "errors", None)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(SharedInput(group), CHUNK), encoding=encoding, errors=errors)
    plain = os.get_terminal_size

    def get_terminal_size(*fd: int) -> os.terminal_size:
        asked = fd[0] if fd else 1
        return os.terminal_size(sizes[asked]) if asked in sizes else plain(*fd)

    os.get_terminal_size = get_terminal_size


class SharedInput(io.RawIOBase):
    """Rank 0 reads and passes on each chunk; the other workers wait for it, as long as rank 0 waits for its user."""

    name, mode = "<stdin>", "rb"

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group, self._store = group, group.store("input")
        self._number = 0
        self._rest = b""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return os.isatty(0)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = self._next(len(view))
        size = min(len(view), len(self._rest))
        view[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def _next(self, most: int) -> bytes:
        key = str(self._number)
        self._number += 1
        if self._group.rank == 0:
            chunk = os.read(0, min(most, CHUNK))
            self._store.set(key, chunk)
            return chunk
        chunk = bytes(self._store.get(key))  # no collective: a person may take longer than a stalled worker may
        if self._store.add(f"{key} taken", 1) == self._group.world - 1:
            self._store.delete_key(key)
        return chunk
