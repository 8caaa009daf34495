"""Prefetch: makes the next results in a thread or a process while the consumer uses the current one."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from paceline.data.execution.autotune import PrefetchTuner
from paceline.data.execution.prefetch_process import PrefetchProcess, PrefetchProcessCursor
from paceline.data.execution.thread_pool import start
from paceline.data.meters import Meter
from paceline.data.planning.nodes import Context, Cursor, Mark, Opener, Through

DEPTH = 2  # results in advance by default
DEPTHS = 16  # results in advance at most, if the consumer has to wait
LOOK = 8  # results after which the gain of a thread is estimated
HANDED = 30e-6  # seconds to hand a result from thread to thread, about
WORTH = 0.05  # share of the time that a thread must save
STOP = object()


class PrefetchNode(Through):
    """Keeps `depth` results in advance; None: tuned automatically, and no thread if the results cost almost nothing."""

    def __init__(self, depth: int | None, meter: Meter, process: PrefetchProcess | None = None) -> None:
        self.depth, self.meter, self.process = depth, meter, process
        self.tuner = PrefetchTuner(meter, process)

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return PrefetchCursor(self, up, context, mark)


class PrefetchCursor(Cursor):
    """Without a given depth, begins in the consumer's thread and measures the cost there."""

    def __init__(self, node: PrefetchNode, up: Opener, context: Context, mark: Mark | None) -> None:
        self._node, self._meter, self._tuner = node, node.meter, node.tuner
        self._opener, self._context = up, context
        self._depth = node.depth or DEPTH
        self._chooses = node.depth is None
        self._made = self._used = 0.0  # seconds that the pipeline made results, and that the consumer used them
        self._seen, self._last = 0, 0.0
        self._thread: threading.Thread | None = None
        self._ended: BaseException | bool = False
        self._process: PrefetchProcessCursor | None = None
        self._up: Cursor | None = None
        if self._tuner.in_process:
            self._go_to_process(mark)
        else:
            self._up = up(context, mark)
            self._mark = self._up.mark()
            if node.depth:
                self._start()

    def take(self, count: int) -> list[Any]:
        if self._process is not None:
            found = self._take_from_process(count)
        elif self._thread is None and not self._ended:
            return self._take_here(count)
        else:
            found = self._take_ready(count)
        if found and self._tuner.look(perf_counter()):
            if self._process is None:
                self._stop_thread(wait=True)
                self._go_to_process(self._mark)
            else:
                self._come_back()
        return found

    # -- in the consumer's thread, and in a thread -----------------------------------------------------------------

    def _take_ready(self, count: int) -> list[Any]:
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
        assert self._up is not None
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
            won = min(made, used)  # seconds that can overlap
            if won > HANDED and won > WORTH * (made + used):
                self._meter.notes.append(f"a thread: {made * 1e3:.2f} ms to make, {used * 1e3:.2f} ms to use")
                self._start()
            self._made = self._used = 0.0
            self._seen = 0
        return found

    def _start(self) -> None:
        self._seen = 0
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[Any] = SimpleQueue()
        self._stopping = False
        for _ in range(self._depth):
            self._room.put(None)
        self._meter.parallel, self._meter.kind = 1, "thread"
        self._thread = start("paceline-prefetch", self._make)

    def _grow(self) -> None:
        """The consumer had to wait: a longer queue evens out results that sometimes take longer."""
        self._depth += 1
        self._room.put(None)

    def _make(self) -> None:
        assert self._up is not None
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

    def _stop_thread(self, *, wait: bool) -> None:
        if self._thread is not None:
            self._stopping = True
            self._room.put(STOP)
            if wait:
                self._thread.join()
            self._thread = None
        if self._up is not None:
            self._up.close(wait=wait)  # without `wait` the thread may still use it, and ends by itself

    # -- in a process ----------------------------------------------------------------------------------------------

    def _go_to_process(self, mark: Mark | None) -> None:
        """Continues in a process from the consumer's position. The process makes the thread's ready results again."""
        assert self._node.process is not None
        self._up, self._fresh, self._begun = None, True, mark
        self._process = self._node.process.open(self._context, mark)
        self._meter.parallel, self._meter.kind, self._meter.fill = 1, "process", None

    def _take_from_process(self, count: int) -> list[Any]:
        assert self._process is not None
        try:
            with self._meter.waiting():
                found = self._process.take(count)
        except Exception:
            if not self._fresh:
                raise
            # Either the stages cannot run in a process, or they fail everywhere: running them here shows which.
            self._tuner.never()
            self._come_back()
            return self.take(count)
        self._fresh = False
        return found

    def _come_back(self) -> None:
        """Returns from the process to the thread, for good."""
        assert self._process is not None
        assert self._node.process is not None
        mark = self._begun if self._fresh else self._process.mark()
        self._node.process.close(wait=True)
        self._process = None
        self._up = self._opener(self._context, mark)
        self._mark = self._up.mark()
        self._start()

    def ready(self) -> bool:
        if self._process is not None:
            return self._process.ready()
        return self._thread is not None and not self._ready.empty()

    def mark(self) -> Mark:
        return self._mark if self._process is None else self._process.mark()

    def close(self, *, wait: bool = True) -> None:
        self._tuner.pause()
        if self._process is not None:
            self._process.close(wait=wait)
            return
        if self._thread is not None:
            self._ended = self._ended or True
        self._stop_thread(wait=wait)
