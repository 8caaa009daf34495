"""Splits a worker's time into phases that add up to the whole.

One phase is current at any moment; entering another stops the first one's clock until it is left. On CUDA the marks
are events on the current stream, read only when the device has passed them, so that nothing here ever waits for it:
the phases are then of the device's time line, and work that the host hides under it costs nothing there.

An event costs the host some microseconds, and short laps are mostly the host's time: of those only every so many is
split. The others are timed as a whole, apart from evaluation, which is no part of a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from paceline.record.phases import EVALUATION, OTHER

UNSPLIT = "unsplit"  # the time of a lap that was not split
SHORT = 0.03  # seconds: a lap on a device below this is short
ONE_IN = 10  # short laps is split
Lap = dict[str, float]


class Stopwatch:
    """Phases of one worker. `lap()` closes a lap; `laps()` gives back the finished ones in order."""

    def __init__(self) -> None:
        self.on_span: Callable[[str, float, float], None] | None = None  # told of each stretch of a phase, on the host
        self._stack = [OTHER]
        self._cuda = False
        self._mark: Any = time.perf_counter()
        self._open: list[tuple[str, Any, Any]] = []  # on CUDA: phase, from event, to event
        self._spare: list[Any] = []  # events that have been read: making one costs more than using it again
        self._streams: dict[Any, Any] = {}  # looking up the current stream's number is cheap, its object is not
        self._device = 0
        self._coarse = False  # the lap under way is not split
        self._count = 0
        self._began = 0.0
        self._seconds: Lap = {}
        self._closed: deque[tuple[Lap, list[tuple[str, Any, Any]], Any]] = deque()

    @property
    def phase(self) -> str:
        return self._stack[-1]

    def use_cuda(self) -> None:
        """From now on time is the device's. Called at the first tensor seen on one; twice does no harm."""
        if not self._cuda:
            self._switch()
            self._cuda, self._device = True, torch.cuda.current_device()
            self._mark = self._event()

    def enter(self, phase: str) -> None:
        if not self._coarse or phase == EVALUATION:
            self._switch()
        self._stack.append(phase)

    def leave(self) -> None:
        if not self._coarse or self._stack[-1] == EVALUATION:
            self._switch()
        self._stack.pop()

    def lap(self, note: Any) -> None:
        """Ends a lap here. `note` comes back with it from `laps()`."""
        self._switch()
        self._closed.append((self._seconds, self._open, note))
        self._seconds, self._open = {}, []
        if self._cuda:
            now, self._count = time.perf_counter(), self._count + 1
            self._coarse = now - self._began < SHORT and self._count % ONE_IN != 0
            self._began = now

    def laps(self, *, wait: bool = False) -> list[tuple[Lap, Any]]:
        """The laps whose times are known by now, oldest first; with `wait`, all of them."""
        done = []
        while self._closed:
            seconds, marks, note = self._closed[0]
            if marks:
                last = marks[-1][2]
                if not wait and not last.query():
                    break
                last.synchronize()
                for phase, start, end in marks:
                    seconds[phase] = seconds.get(phase, 0.0) + start.elapsed_time(end) / 1000.0
                self._spare += [start for _, start, _ in marks]  # the last end is the next lap's start
            self._closed.popleft()
            done.append((seconds, note))
        return done

    def _switch(self) -> None:
        phase = self._stack[-1]
        if self._cuda:
            now = self._event()
            if self._coarse and phase != EVALUATION:
                phase = UNSPLIT
            self._open.append((phase, self._mark, now))
        else:
            now = time.perf_counter()
            self._seconds[phase] = self._seconds.get(phase, 0.0) + (now - self._mark)
            if self.on_span is not None:
                self.on_span(phase, self._mark, now)
        self._mark = now

    def _event(self) -> Any:
        """A mark on the stream that the script computes on."""
        number = torch._C._cuda_getCurrentStream(self._device)
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = torch.cuda.current_stream(self._device)
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event
