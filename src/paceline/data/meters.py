"""Meters of a stage's cost: time in its own work, and time spent waiting for the stage before it."""

from __future__ import annotations

import threading
from time import perf_counter, thread_time
from typing import Any

LONG = 200e-6  # seconds of work from which on each job's CPU time is measured
SUMS = ("jobs", "samples", "given", "work", "cpu", "wait", "idle")
SETTINGS = ("ratio", "bytes", "parallel", "kind", "fill", "notes")
ENOUGH_JOBS, ENOUGH_TIME = 8, 0.05  # jobs, or seconds of work, after which a cost is known


class Meter:
    """The figures of one stage of one pipeline. Times are sums over all threads and processes of the stage."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jobs = 0
        self.samples = 0
        self.given = 0
        self.work = 0.0  # seconds of work
        self.cpu = 0.0  # seconds of work during which a core was busy
        self.wait = 0.0  # seconds that the stage waited for the stage before it
        self.idle = 0.0  # seconds that the consumer waited for a result of a pool
        self.ratio = 1.0  # CPU time divided by work time, when it was last measured
        self.bytes = -1  # size of a result; -1: not measured yet
        self.parallel = 0  # jobs at a time; 0: in the consumer's own thread
        self.kind = ""  # threads, processes
        self.fill: tuple[int, int] | None = None  # results that are ready, and the most that may be
        self.notes: list[str] = []  # decisions of the autotuner, as text
        self._lock = threading.Lock()
        self._waiting, self._idle = _Span(self, "wait"), _Span(self, "idle")

    @property
    def known(self) -> bool:
        """Whether enough jobs were measured for a decision."""
        return self.jobs >= ENOUGH_JOBS or (self.jobs > 1 and self.work > ENOUGH_TIME)

    @property
    def each(self) -> float:
        """Seconds of work for one job."""
        return self.work / self.jobs if self.jobs else 0.0

    def waiting(self) -> _Span:
        return self._waiting

    def idling(self) -> _Span:
        return self._idle

    def working(self, samples: int) -> _Work:
        return _Work(self, samples)

    def add(self, samples: int, work: float, cpu: float) -> None:
        """Adds a finished job. May be called from any thread."""
        with self._lock:
            self.jobs += 1
            self.samples += samples
            self.work += work
            self.cpu += cpu

    def sums(self) -> list[float]:
        """The figures that are added up."""
        return [getattr(self, name) for name in SUMS]

    def settings(self) -> list[Any]:
        """The figures that are replaced, not added up."""
        return [getattr(self, name) for name in SETTINGS]

    def take_over(self, sums: list[float], settings: list[Any]) -> None:
        """Takes the figures of the same stage in another process: `sums` since the last call, `settings` of now."""
        for name, value in zip(SUMS, sums, strict=True):
            setattr(self, name, getattr(self, name) + value)
        for name, value in zip(SETTINGS, settings, strict=True):
            setattr(self, name, value)


class Clock:
    """The consumer's time: how long it waited for results, and how long it used them."""

    def __init__(self) -> None:
        self.waited = self.used = 0.0
        self.results = 0
        self._asked = self._answered = 0.0

    def asked(self) -> None:
        self._asked = perf_counter()
        if self._answered:
            self.used += self._asked - self._answered

    def answered(self) -> None:
        self._answered = perf_counter()
        self.waited += self._answered - self._asked
        self.results += 1

    def ended(self) -> None:
        """The consumer asked, and the epoch had ended. Time until the next loop does not count as use of a result."""
        self.waited += perf_counter() - self._asked
        self._answered = 0.0


class Pace:
    """Whether the pipeline is slower than its consumer, as last measured."""

    is_slow = True


class _Span:
    """Adds to one of a meter's sums. Used by the consumer's thread only."""

    __slots__ = ("_began", "_meter", "_name")

    def __init__(self, meter: Meter, name: str) -> None:
        self._meter, self._name, self._began = meter, name, 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *error: object) -> None:
        setattr(self._meter, self._name, getattr(self._meter, self._name) + perf_counter() - self._began)


class _Work:
    __slots__ = ("_asks", "_began", "_cpu", "_meter", "_samples")

    def __init__(self, meter: Meter, samples: int) -> None:
        self._meter, self._samples = meter, samples

    def __enter__(self) -> None:
        # Reading a thread's CPU time is a system call: for short work only every 16th job is measured.
        self._asks = self._meter.jobs & 15 == 0 or self._meter.each > LONG
        self._cpu = thread_time() if self._asks else 0.0
        self._began = perf_counter()

    def __exit__(self, *error: object) -> None:
        meter, work = self._meter, perf_counter() - self._began
        if self._asks:
            cpu = thread_time() - self._cpu
            meter.ratio = min(1.0, cpu / work) if work else 1.0
        else:
            cpu = work * meter.ratio
        meter.add(self._samples, work, cpu)
