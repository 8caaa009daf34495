"""A pool of processes that make batches, for functions that hold the GIL, of which only one runs at a time in threads.

Processes are forked, so the work needs no pickling. Keys and results pass through slots of shared memory
(`execution/slots.py`). A process ends when its pipe is closed, so no process outlives this one.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from paceline.data.error_policy import LostSamples
from paceline.data.execution.slots import Copied, Pickler, SlotPool, Unpickler
from paceline.data.meters import Meter
from paceline.data.planning.job import NOTHING, Token, Where, Work
from paceline.errors import DataError, PacelineError

SPARE = 4  # slots beyond those of running jobs, for batches that the consumer holds without a copy

_gone: list[int] = []  # processes that were told to end and must still be reaped


class Ticket:
    """A job that was sent to a process."""

    def __init__(self, child: Child, slot: int, where: Where, pool: ProcessEngine) -> None:
        self._child, self.slot, self.where, self._pool = child, slot, where, pool
        self.answer: tuple[bool, Any] | None = None
        self.cancelled = False

    def done(self) -> bool:
        while self.answer is None and self._child.pipe.poll():
            self._pool.receive(self._child)
        return self.answer is not None

    def result(self) -> Any:
        while self.answer is None:
            self._pool.receive(self._child)
        well, value = self.answer
        self.answer = (True, None)
        if not well:
            raise value
        return value

    def cancel(self) -> None:
        self.cancelled = True


class Child:
    """A process, and its jobs in order."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid, self.pipe = pid, pipe
        self.has: deque[Ticket] = deque()


class ProcessEngine:
    """Runs jobs in `size` processes."""

    kind = "processes"

    def __init__(self, work: Work, losses: LostSamples, meter: Meter, size: int, largest: int) -> None:
        self.work, self.losses, self.meter, self.size = work, losses, meter, size
        self._slots = SlotPool(3 * size + SPARE, 4 * largest)
        self._slots.free.extend(range(len(self._slots)))
        self._children: list[Child] = []
        _reap()
        for _ in range(size):
            self._children.append(self._fork())
        self._closed = False

    def room(self) -> int:
        return len(self._slots.free)

    def submit(self, keys: Any, where: Where, token: Token) -> Ticket:
        number = self._slots.free.pop()
        slot = self._slots[number]
        child = min(self._children, key=lambda child: len(child.has))
        ticket = Ticket(child, number, where, self)
        child.has.append(ticket)
        file = io.BytesIO()
        slot.used = 0
        Pickler(file, slot).dump(keys)
        raw = file.getvalue()
        begin = slot.reserve(len(raw))
        if begin is not None:
            slot.memory[begin : begin + len(raw)] = raw
        try:
            child.pipe.send((number, raw if begin is None else (begin, begin + len(raw)), token))
        except (BrokenPipeError, ConnectionResetError):
            pass  # reported when the result is asked for
        return ticket

    def receive(self, child: Child) -> None:
        """Waits for the next answer of a process, and stores it in its ticket."""
        ticket = child.has.popleft() if child.has else None
        try:
            well, raw, work, cpu, samples, lost = child.pipe.recv()
        except (EOFError, ConnectionResetError):
            if ticket is not None:
                ticket.answer = False, died(child.pid)
            return
        if ticket is None:
            return
        self.meter.add(samples, work, cpu)
        try:
            if not well:
                raise _named(pickle.loads(raw), ticket.where)
            for reason, policy in lost:
                self.losses.lose(DataError(_with_names(reason, ticket.where)), policy)
        except Exception as error:
            ticket.answer = False, error
            self._slots.free.append(ticket.slot)
            return
        if ticket.cancelled:
            ticket.answer = True, NOTHING
            self._slots.free.append(ticket.slot)
        else:
            # A consumer that holds many batches gets copies, so that slots do not run out.
            few = len(self._slots.free) < 2 * self.size
            result = self._slots.lend(ticket.slot, raw, copy=few)
            ticket.answer = True, NOTHING if result is None else result[0]

    def wait_any(self, tickets: Sequence[Any]) -> int:
        while True:
            for number, ticket in enumerate(tickets):
                if ticket.done():
                    return number
            wait([child.pipe for child in self._children if child.has])

    def _fork(self) -> Child:
        ours, its = Pipe()

        def live() -> None:
            ours.close()
            for child in self._children:
                child.pipe.close()
            _live(its, self.work, self._slots)

        pid = forked(live)
        its.close()
        return Child(pid, ours)

    def close(self, *, wait: bool) -> None:
        if self._closed:
            return
        self._closed = True
        for child in self._children:
            child.pipe.close()
            end(child.pid, wait=wait)
        self._slots.close()

    def __del__(self) -> None:
        self.close(wait=False)


def forked(live: Callable[[], None]) -> int:
    """Forks a process that calls `live` and ends. The process never collects this process's garbage: it may be on a
    GPU, and a forked process cannot even free GPU memory."""
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()
    try:
        live()
    finally:
        os._exit(0)


def end(pid: int, *, wait: bool) -> None:
    """Ends a process whose pipe was closed. Without `wait` the process ends by itself, and is reaped later."""
    if not wait:
        _gone.append(pid)
        return
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def died(pid: int) -> DataError:
    """The error for a process that ended before its work was done."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        status = 0
    how = f"by signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "by itself"
    return DataError(
        f"A process that makes samples ended {how}.",
        advice="SIGKILL usually means out of memory: use fewer processes (parallel=1), or threads (kind='threads').",
    )


def _reap() -> None:
    for pid in list(_gone):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                _gone.remove(pid)
        except ChildProcessError:
            _gone.remove(pid)


def _place(number: int) -> str:
    """A placeholder for a sample's name, which only the parent process knows."""
    return f"\0{number}\0"


def _with_names(text: str, where: Where) -> str:
    return re.sub("\0(\\d+)\0", lambda found: where(int(found[1])), text)


def _named(error: Exception, where: Where) -> Exception:
    if isinstance(error, PacelineError):
        return type(error)(_with_names(error.message, where), advice=error.advice)
    return error


def _live(pipe: Connection, work: Work, slots: SlotPool) -> None:
    """The loop of a pool process, until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # torch's thread pool does not survive a fork
    while True:
        try:
            number, packed, token = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        slot = slots[number]
        raw = packed if isinstance(packed, bytes) else slot.memory[slice(*packed)]
        keys = Unpickler(io.BytesIO(raw), Copied(slot)).load()  # copies, because the result overwrites the slot
        slot.used = 0
        began, busy = time.perf_counter(), time.process_time()
        losses = LostSamples(keeps=True)
        try:
            file = io.BytesIO()
            value = work.do(keys, _place, losses, slot.allocate, token)
            Pickler(file, slot).dump(None if value is NOTHING else (value,))
            well, raw = True, file.getvalue()
        except Exception as error:
            well, raw = False, picklable(error)
        spent = time.perf_counter() - began, time.process_time() - busy
        pipe.send((well, raw, *spent, len(keys), losses.kept))


def picklable(error: Exception) -> bytes:
    error.__cause__ = error.__context__ = None
    try:
        raw = pickle.dumps(error)
        pickle.loads(raw)
    except Exception:
        raw = pickle.dumps(DataError(f"{type(error).__name__}: {error}"))
    return raw
