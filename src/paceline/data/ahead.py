"""Ahead: what comes next is made in a thread, while the consumer uses what it has."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from paceline.data.cursor import Context, Cursor, Mark, Opener
from paceline.data.meters import Meter
from paceline.data.nodes import Through

DEPTH = 2  # results in advance, where nobody says how many
DEPTHS = 16  # … at most, when they are found missing
LOOK = 8  # results after which it is known whether a thread is worth it
HANDED = 30e-6  # seconds that it costs to hand a result from thread to thread, about
WORTH = 0.05  # of the time that must be won
STOP = object()


class Ahead(Through):
    """`depth` results in advance; None: as many as prove useful, and no thread where making them costs nothing."""

    def __init__(self, depth: int | None, meter: Meter) -> None:
        self.depth, self.meter = depth, meter

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return AheadCursor(self, up(context, mark))


class AheadCursor(Cursor):
    """Begins in the consumer's own thread, if it may choose, and looks at what that costs."""

    def __init__(self, node: Ahead, up: Cursor) -> None:
        self._up, self._meter = up, node.meter
        self._mark = up.mark()
        self._depth = node.depth or DEPTH
        self._chooses = node.depth is None
        self._made = self._used = 0.0  # seconds for making a result, and between two that were asked for
        self._seen, self._last = 0, 0.0
        self._thread: threading.Thread | None = None
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[Any] = SimpleQueue()
        self._ended: BaseException | bool = False
        self._stopping = False
        if node.depth:
            self._start()

    def take(self, count: int) -> list[Any]:
        if self._thread is None and not self._ended:
            return self._take_here(count)
        found: list[Any] = []
        while len(found) < count and not self._ended:
            if self._chooses and self._depth < DEPTHS and self._ready.empty() and self._seen > LOOK:
                self._grow()
            self._seen += 1
            with self._meter.waiting():
                kind, value, mark = self._ready.get()
            if kind == "end":
                self._ended, self._mark = value or True, mark or self._mark
                break
            found.append(value)
            self._mark = mark
            self._room.put(None)
        self._meter.fill = self._ready.qsize(), self._depth
        if not found and isinstance(self._ended, BaseException):
            error, self._ended = self._ended, True
            raise error
        return found

    def _take_here(self, count: int) -> list[Any]:
        began = perf_counter()
        found = self._up.take(count)
        now = perf_counter()
        self._mark = self._up.mark()
        if self._seen:
            self._used += began - self._last
        self._made += now - began
        self._last = now
        self._seen += 1
        if self._seen >= LOOK:
            made, used = self._made / self._seen, self._used / (self._seen - 1)
            won = min(made, used)  # what can go on at the same time
            if won > HANDED and won > WORTH * (made + used):
                self._meter.notes.append(f"a thread: {made * 1e3:.2f} ms to make, {used * 1e3:.2f} ms to use")
                self._start()
            self._made = self._used = 0.0
            self._seen = 0
        return found

    def _start(self) -> None:
        self._seen = 0
        for _ in range(self._depth):
            self._room.put(None)
        self._meter.parallel, self._meter.kind = 1, "thread"
        self._thread = threading.Thread(target=self._make, name="paceline-ahead", daemon=True)
        self._thread.start()

    def _grow(self) -> None:
        """Asked for more while nothing lay ready: a longer queue evens out what takes longer now and then."""
        self._depth += 1
        self._room.put(None)

    def _make(self) -> None:
        try:
            while self._room.get() is not STOP and not self._stopping:
                with self._meter.working(1):
                    got = self._up.take(1)
                if not got:
                    break
                self._ready.put(("item", got[0], self._up.mark()))
            self._ready.put(("end", None, self._up.mark()))
        except BaseException as error:
            self._ready.put(("end", error, None))

    def mark(self) -> Mark:
        return self._mark

    def close(self, *, wait: bool = True) -> None:
        if self._thread is not None:
            self._stopping = True
            self._room.put(STOP)
            if wait:
                self._thread.join()
            self._thread = None
            self._ended = self._ended or True
        self._up.close(wait=wait)  # without waiting its thread may be in there still: it ends by itself
