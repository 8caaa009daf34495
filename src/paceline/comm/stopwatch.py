"""Splits a worker's time into phases that add up to the whole.

One phase is current at any moment. Entering a phase stops the clock of the previous phase until the new one is left. On
CUDA the marks are events on the current stream. The stopwatch reads an event only after the device has passed the
event, so that the stopwatch never waits for the device. The phases then measure device time: host work that overlaps
with device work takes no time of its own.

An event costs the host some microseconds, and a short lap is mostly host time. Therefore only one short lap in `ONE_IN`
is split into phases. Each of the other short laps is timed as a whole, except evaluation and Paceline's own checks,
which are not part of a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.record.phases import CHECK, COMMUNICATION, EVALUATION, OTHER
from paceline.torch_private import current_stream_number, is_capturing

UNSPLIT = "unsplit"  # the time of a lap that was not split
SHORT = 0.03  # seconds: a lap on a CUDA device is short below this duration
ONE_IN = 10  # one short lap in this number of laps is split into phases
BESIDE = (EVALUATION, CHECK)  # not part of a step: timed in every lap
Lap = dict[str, float]


class Stopwatch:
    """Phases of one worker. `lap()` closes a lap; `laps()` returns the finished laps in order."""

    def __init__(self) -> None:
        self.on_span: Callable[[str, float, float], None] | None = None  # called with each span of a phase (CPU only)
        self.traced = False  # phases are marked in a trace: see `profile.marks`
        self._stack = [OTHER]
        self._cuda = False
        self._mark: Any = time.perf_counter()
        self._open: list[tuple[str, Any, Any]] = []  # on CUDA: phase, start event, end event
        self._spare: list[Any] = []  # events that have been read: reusing an event is cheaper than creating one
        self._streams: dict[Any, Any] = {}  # cache: the id of the current stream is cheap to get, its object is not
        self._device = 0
        self._coarse = False  # the current lap is not split into phases
        self._count = 0
        self._began = 0.0
        self._checked = 0.0  # seconds of checks, by the host's clock
        self._seconds: Lap = {}
        self._closed: deque[tuple[Lap, list[tuple[str, Any, Any]], Any]] = deque()

    @property
    def phase(self) -> str:
        return self._stack[-1]

    def use_cuda(self) -> None:
        """Measures device time from now on. Called at the first CUDA tensor; later calls do nothing."""
        if not self._cuda:
            self._switch()
            self._cuda, self._device = True, torch.cuda.current_device()
            self._mark = self._event()

    @property
    def stands(self) -> bool:
        """Whether the script captures a CUDA graph: the device computes nothing, and an event would be captured too."""
        return self._cuda and is_capturing()

    def enter(self, phase: str) -> None:
        around = self._stack[-1]
        # A check is timed as a whole, and so are an evaluation and its collectives.
        if around == CHECK or (around == EVALUATION and phase == COMMUNICATION):
            phase = around
        elif not self._coarse or phase in BESIDE:
            self._switch()
        self._stack.append(phase)

    def leave(self) -> None:
        phase = self._stack[-1]
        if phase != self._stack[-2] and (not self._coarse or phase in BESIDE):
            self._switch()
        self._stack.pop()

    @contextmanager
    def checking(self) -> Iterator[None]:
        """The time inside, also that of waits for other workers, is Paceline's own check: it counts for no step."""
        begun = self.now()
        self.enter(CHECK)
        try:
            yield
        finally:
            self.leave()
            self._checked += self.now() - begun

    def now(self) -> float:
        """The host's clock, which stands still during checks that have ended."""
        return time.perf_counter() - self._checked

    def lap(self, note: Any) -> None:
        """Ends the current lap. `laps()` returns `note` with the lap."""
        self._switch()
        self._closed.append((self._seconds, self._open, note))
        self._seconds, self._open = {}, []
        if self._cuda:
            now, self._count = time.perf_counter(), self._count + 1
            self._coarse = now - self._began < SHORT and self._count % ONE_IN != 0
            self._began = now

    def laps(self, *, wait: bool = False) -> list[tuple[Lap, Any]]:
        """The closed laps whose times are known, oldest first. `wait=True` waits for the device and returns all closed
        laps."""
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
                self._spare += [start for _, start, _ in marks]  # not the last end event: the next lap starts with it
            self._closed.popleft()
            done.append((seconds, note))
        return done

    def _switch(self) -> None:
        phase = self._stack[-1]
        if self._cuda:
            if self.stands:
                return
            now = self._event()
            if self._coarse and phase not in BESIDE:
                phase = UNSPLIT
            self._open.append((phase, self._mark, now))
        else:
            now = time.perf_counter()
            self._seconds[phase] = self._seconds.get(phase, 0.0) + (now - self._mark)
            if self.on_span is not None:
                self.on_span(phase, self._mark, now)
        self._mark = now

    def _event(self) -> Any:
        """Records a timing event on the current stream of the script."""
        number = current_stream_number(self._device)
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = torch.cuda.current_stream(self._device)
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event
