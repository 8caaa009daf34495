"""Engines that run jobs: in the consumer's thread, in threads, or in processes. Kind and size are chosen by measuring.

The first jobs run in the consumer's thread. Slow jobs then go to threads (in a prefetch process, only once the script
waits). More threads are added as long as they help: one for each core if the work computes, more if it waits for a disk
or a network. If threads leave cores idle, because the GIL lets only one of them run, processes are tried. The fastest
setting is kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Any, Protocol

from paceline.data.error_policy import LostSamples
from paceline.data.execution.autotune import PoolSetting, StageTuner
from paceline.data.execution.parallel_map import Jobs, Ticket
from paceline.data.execution.process_pool import ProcessEngine
from paceline.data.execution.thread_pool import Task, Threads
from paceline.data.meters import Clock, Meter, Pace
from paceline.data.planning import stages as s
from paceline.data.planning.job import Token, Where, Work
from paceline.data.planning.stages import How

SHORT = 300e-6  # seconds of a job below which handing it to a pool costs more than it saves
MEMORY = 0.25  # share of the free memory for results that wait


def cores() -> int:
    """The number of cores that this worker may use."""
    return len(os.sched_getaffinity(0))


class Engine(Protocol):
    """Runs jobs."""

    kind: str
    size: int

    def room(self) -> int: ...

    def submit(self, keys: Any, where: Where, token: Token) -> Any: ...

    def wait_any(self, tickets: Sequence[Any]) -> int: ...

    def close(self, *, wait: bool) -> None: ...


class ThreadEngine:
    """Threads of this process."""

    kind = "threads"

    def __init__(self, work: Work, losses: LostSamples, meter: Meter, size: int) -> None:
        self.work, self.losses, self.meter, self.size = work, losses, meter, size
        self._threads = Threads(size, "paceline-job")
        self._ready = threading.Semaphore(0)

    def room(self) -> int:
        return 2 * self.size + 2

    def submit(self, keys: Any, where: Where, token: Token) -> Task:
        def job() -> Any:
            began, busy = perf_counter(), thread_time()
            try:
                return self.work.do(keys, where, self.losses, token=token)
            finally:
                self.meter.add(len(keys), perf_counter() - began, thread_time() - busy)
                self._ready.release()

        return self._threads.submit(job)

    def wait_any(self, tickets: Sequence[Any]) -> int:
        while True:
            for number, ticket in enumerate(tickets):
                if ticket.done():
                    return number
            # The semaphore is released just before `done` is true, so check again after a short wait.
            self._ready.acquire(timeout=0.01)

    def close(self, *, wait: bool) -> None:
        self._threads.close(wait=wait)


class HereEngine:
    """Runs a job when it is submitted, for work that takes less time than handing it to a pool."""

    kind = "here"
    size = 1

    def __init__(self, work: Work, losses: LostSamples, meter: Meter) -> None:
        self.work, self.losses, self.meter = work, losses, meter

    def room(self) -> int:
        return 1

    def submit(self, keys: Any, where: Where, token: Token) -> Task:
        def job() -> Any:
            with self.meter.working(len(keys)):
                return self.work.do(keys, where, self.losses, token=token)

        task = Task(job)
        task.run()
        return task

    def wait_any(self, tickets: Sequence[Any]) -> int:
        return 0

    def close(self, *, wait: bool) -> None:
        pass


class TunedPool:
    """The engine of one stage for all epochs, replaced when the tuner asks for another. Used by one thread at a
    time."""

    def __init__(self, jobs: Jobs, how: How, meter: Meter) -> None:
        self._jobs, self._meter = jobs, meter
        self._tuner = StageTuner(how, meter, cores())
        self._setting = self._tuner.setting
        self._engine: Engine = self._start(self._setting)
        self._old: list[Engine] = []  # replaced engines that still have jobs
        self._outstanding = 0  # their jobs, at most

    def room(self, waiting: int) -> int:
        if self._setting.kind == "here":
            return 1 - waiting
        most = self._setting.size + max(2, self._setting.size)
        if self._meter.bytes > 0:
            most = max(2, min(most, int(MEMORY * _free_memory() // self._meter.bytes)))
        return min(self._engine.room(), most - waiting)

    def submit(self, keys: Any, where: Where, token: Token) -> Ticket:
        return self._engine.submit(keys, where, token)

    def wait_any(self, tickets: Sequence[Any]) -> int:
        own = [ticket for ticket in tickets if isinstance(ticket, Task) != isinstance(self._engine, ProcessEngine)]
        if len(own) < len(tickets):
            return 0  # some jobs are in an older engine of another kind: take them in order
        return self._engine.wait_any(tickets)

    def given(self, flying: Sequence[Ticket]) -> None:
        if self._setting.kind != "here":
            ready = sum(ticket.done() for ticket in list(flying)[:8])
            self._meter.fill = ready, self._setting.size + max(2, self._setting.size)
        self._outstanding -= 1
        if self._old and self._outstanding < 0:
            self._close_old(wait=True)
        wanted = self._tuner.look(perf_counter())
        if wanted is None or wanted == self._setting:
            return
        self._setting = wanted
        self._old.append(self._engine)
        self._outstanding = len(flying)
        self._engine = self._start(wanted)

    def _close_old(self, *, wait: bool) -> None:
        old, self._old = self._old, []
        for engine in old:
            engine.close(wait=wait)

    def _start(self, setting: PoolSetting) -> Engine:
        jobs, meter = self._jobs, self._meter
        meter.kind, meter.parallel = setting.kind, setting.size
        if setting.kind == "here":
            meter.kind, meter.fill = "", None
            return HereEngine(jobs.work, jobs.losses, meter)
        if setting.kind == "processes":
            return ProcessEngine(jobs.work, jobs.losses, meter, setting.size, max(0, meter.bytes))
        return ThreadEngine(jobs.work, jobs.losses, meter, setting.size)

    def close(self, *, wait: bool) -> None:
        self._close_old(wait=wait)
        self._engine.close(wait=wait)


class Chooser:
    """Chooses the pool of one stage, and keeps it from epoch to epoch."""

    def __init__(self, how: How, pace: Pace) -> None:
        self.how, self._pace = how, pace
        self._pool: TunedPool | None = None

    @property
    def at_once(self) -> bool:
        """Whether the choice needs no measurement."""
        return self._pool is not None or self.how.kind in ("threads", "processes")

    @property
    def wanted(self) -> bool:
        """Whether a pool is needed: the pipeline is slower than the consumer, or `parallel` was set."""
        return self._pace.is_slow or self.how.parallel is not None

    @property
    def elsewhere(self) -> bool:
        """Whether jobs may run outside the consumer's thread."""
        return self.how.kind != "here"

    def choose(self, jobs: Jobs, meter: Meter) -> TunedPool | None:
        if self._pool is None:
            is_set = self.how.kind != "auto" or self.how.parallel is not None
            quick = meter.each < SHORT or (jobs.work.gather is not None and not jobs.work.after)
            if self.how.kind == "here" or (quick and not is_set):
                return None
            self._pool = TunedPool(jobs, self.how, meter)
        return self._pool

    def close(self, *, wait: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(wait=wait)


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + (1 << 30)


# -- what the cursors of one pipeline share ---------------------------------------------------------------------------


class Closable(Protocol):
    def close(self, *, wait: bool) -> None: ...


@dataclass(slots=True)
class Runtime:
    """State that the cursors of one pipeline share."""

    losses: LostSamples = field(default_factory=LostSamples)
    meters: list[Meter] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    pace: Pace = field(default_factory=Pace)
    choosers: list[Chooser] = field(default_factory=list)
    prefetch_processes: list[Closable] = field(default_factory=list)

    def meter(self, name: str) -> Meter:
        meter = Meter(name)
        self.meters.append(meter)
        return meter

    def chooser(self, how: s.How) -> Chooser:
        chooser = Chooser(how, self.pace)
        self.choosers.append(chooser)
        return chooser

    def close(self, *, wait: bool) -> None:
        """Ends threads and processes that outlive an epoch."""
        for process in self.prefetch_processes:
            process.close(wait=wait)
        for chooser in self.choosers:
            chooser.close(wait=wait)
