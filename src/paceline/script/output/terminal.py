"""The terminal as the script sees it: one standard input for all workers, and the size of the terminal.

Rank 0's standard input is read once, when a script asks for it, and every worker gets the same bytes. So `input()`,
`sys.stdin.read()` and `for line in sys.stdin` take the same branch on every worker.

So does `breakpoint()`: every worker stops there, and does what is typed. While a worker waits for its user, the stall
inspector is told so (`Pulse.asking`), and the live line is not drawn.

A worker's standard output is a pipe or a log, which has no size: `os.get_terminal_size` returns that of the terminal to
which the launcher writes. Reads past `sys.stdin` (`os.read(0, …)`, child processes) are rank 0's alone.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.comm.ending import Regrouping
from paceline.comm.group import Group
from paceline.comm.pulse import Pulse

CHUNK = 8192  # bytes: most that one read takes


def install(group: Group, sizes: Mapping[int, Sequence[int]], *, alone: bool = False) -> None:
    """Patches this process. `sizes`: columns and lines of the launcher's output streams that are terminals. `alone`:
    the script distributes itself, and rank 0 reads for itself."""
    if sys.stdin is not None:
        raw = OwnInput(group.pulse) if alone or group.world == 1 else SharedInput(group)
        encoding, errors = getattr(sys.stdin, "encoding", None), getattr(sys.stdin, "errors", None)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(raw, CHUNK), encoding=encoding, errors=errors)
    plain = os.get_terminal_size

    def get_terminal_size(*fd: int) -> os.terminal_size:
        asked = fd[0] if fd else 1
        if asked not in sizes:
            return plain(*fd)
        try:
            return plain(0)  # the same terminal, as a rule, and as large as it is now
        except OSError:
            return os.terminal_size(sizes[asked])

    os.get_terminal_size = get_terminal_size


class OwnInput(io.RawIOBase):
    """Standard input of a worker that reads for itself."""

    name, mode = "<stdin>", "rb"

    def __init__(self, pulse: Pulse) -> None:
        super().__init__()
        self._pulse = pulse
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
            main = threading.current_thread() is threading.main_thread()  # a thread that reads keeps nobody waiting
            self._pulse.asking = main
            try:
                self._rest = self._next(len(view))
            finally:
                self._pulse.asking = self._pulse.asking and not main
        size = min(len(view), len(self._rest))
        view[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def _next(self, most: int) -> bytes:
        return os.read(0, min(most, CHUNK))


class SharedInput(OwnInput):
    """Rank 0 reads and passes on each chunk; the other workers wait for it, as long as rank 0 waits for its user. In an
    elastic run the input ends with rank 0."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.pulse)
        self._group, self._store = group, group.store("input")
        self._number = 0

    def _next(self, most: int) -> bytes:
        key = str(self._number)
        self._number += 1
        if self._group.rank == 0:
            chunk = super()._next(most)
            self._store.set(key, chunk)
            return chunk
        chunk = self._told(key)  # no collective: a person may take longer than a stalled worker may
        if self._store.add(f"{key} taken", 1) == self._group.world - 1:
            self._store.delete_key(key)
        return chunk

    def _told(self, key: str) -> bytes:
        members, link = self._group.members, getattr(self._store, "link", None)
        if members is None or link is None:
            return bytes(self._store.get(key))
        link.while_waiting = members.look_at_first
        try:
            return bytes(self._store.get(key))
        except Regrouping:
            return bytes(self._store.compare_set(key, b"", b""))  # or what it could still tell
        finally:
            link.while_waiting = None
