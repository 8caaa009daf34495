"""A timeline of all operations in Chrome's trace format, written by rank 0: one row a tensor.

Of each operation: how long its negotiation took and when each rank was ready, then its activities (copies into and out
of the fusion buffer, the collective). Open the file in chrome://tracing or ui.perfetto.dev. The file is valid for these
programs at any time, also if the run is killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.horovod.engine.messages import Request


class Timeline:
    """One file. `close` is called by the script's thread, all else by the background thread."""

    def __init__(self, path: str, *, marks_cycles: bool) -> None:
        self.marks_cycles = marks_cycles
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._file.write("[\n")
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._rows: dict[str, int] = {}
        self._negotiated: set[str] = set()
        self._running: list[str] = []  # tensors with an open activity
        self._encode = msgspec.json.Encoder().encode

    def arrived(self, rank: int, request: Request) -> None:
        """A rank has submitted the operation. The first one begins the negotiation."""
        name = request.name
        if name not in self._negotiated:
            self._negotiated.add(name)
            self._add("B", name, f"NEGOTIATE_{request.kind.upper()}")
        self._add("X", name, str(rank), dur=0)

    def begin(self, requests: Sequence[Request]) -> None:
        """The operations are carried out, in one buffer."""
        for request in requests:
            self.agreed(request)
            tensors = [{"dtype": dtype, "shape": list(shape)} for dtype, shape in request.parts]
            self._add("B", request.name, request.kind.upper(), args={"tensors": tensors})

    def agreed(self, request: Request) -> None:
        """All ranks have submitted the operation."""
        if request.name in self._negotiated:
            self._negotiated.discard(request.name)
            self._add("E", request.name)

    def activity(self, requests: Sequence[Request], activity: str) -> None:
        """The next activity of these operations begins; the last one ends."""
        self._end_activity()
        self._running = [request.name for request in requests]
        for name in self._running:
            self._add("B", name, activity)

    def end(self, requests: Sequence[Request]) -> None:
        self._end_activity()
        for request in requests:
            self._add("E", request.name)
        self.flush()

    def cycle(self) -> None:
        if self.marks_cycles:
            self._write({"ph": "i", "pid": 0, "ts": self._now(), "name": "CYCLE_START", "s": "g"})

    def flush(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        for name in [*self._negotiated, *self._running]:  # of operations that are under way
            self._add("E", name)
        with self._lock:
            if not self._file.closed:
                self._file.write(f'{{"ph": "i", "pid": 0, "name": "END", "ts": {self._now()}, "s": "g"}}\n]\n')
                self._file.close()

    def _end_activity(self) -> None:
        for name in self._running:
            self._add("E", name)
        self._running = []

    def _add(self, phase: str, tensor: str, name: str = "", **more: Any) -> None:
        row = self._rows.get(tensor)
        if row is None:
            row = self._rows[tensor] = len(self._rows) + 1
            self._write({"ph": "M", "pid": row, "name": "process_name", "args": {"name": tensor}})
            self._write({"ph": "M", "pid": row, "name": "process_sort_index", "args": {"sort_index": row}})
        event = {"ph": phase, "pid": row, "tid": 0, "ts": self._now(), **more}
        self._write(event | {"name": name} if name else event)

    def _now(self) -> int:
        return int((time.monotonic() - self._began) * 1e6)

    def _write(self, event: dict[str, Any]) -> None:
        line = self._encode(event).decode() + ",\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line)
