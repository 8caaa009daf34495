"""Processes that make batches: for functions that hold Python's lock, of which threads can only run one at a time.

They are forked, so the work needs no pickling, and what it refers to is there. What goes to them and comes back lies in
slots of shared memory: a batch is written straight into a slot and read where it lies. A slot is used again when the
last tensor that lies in it is gone; where slots get few, batches are copied out. A process ends when its pipe does, so
none is left behind however this one ends.
"""

from __future__ import annotations

import gc
import io
import itertools
import math
import mmap
import os
import pickle
import re
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from paceline.data.error_policy import Losses
from paceline.data.execution.job import NOTHING, Token, Where, Work
from paceline.data.metrics.meters import Meter
from paceline.errors import DataError, PacelineError

ALIGN = 64
LEAST = 64 << 20  # bytes of a slot; only what is used takes memory
LONG = 1 << 10  # bytes of a text that is not worth its way through a pipe
SPARE = 4  # slots beyond those under way: what the consumer may hold without a copy

_gone: list[int] = []  # processes that ended and were not waited for


class Slot:
    """A piece of shared memory, written by whoever has it."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("paceline-data")
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        self.size = size
        self.used = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in here; an ordinary one where it does not fit."""
        count = math.prod(shape)
        begin = self.reserve(count * dtype.itemsize)
        if begin is None:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=begin).view(shape)

    def reserve(self, size: int) -> int | None:
        """Where so many bytes may lie; None where they do not fit, or there are none."""
        begin = -(-self.used // ALIGN) * ALIGN
        if not size or begin + size > self.size:
            return None
        self.used = begin + size
        return begin

    def close(self) -> None:
        os.close(self.descriptor)
        # The mapping goes when the last tensor in it does.


class Ticket:
    """A job that a process has, or had."""

    def __init__(self, child: Child, slot: Slot, where: Where, pool: ProcessEngine) -> None:
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
    """A process, and the jobs that it has, in order."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid, self.pipe = pid, pipe
        self.has: deque[Ticket] = deque()


class ProcessEngine:
    """`size` processes."""

    kind = "processes"

    def __init__(self, work: Work, losses: Losses, meter: Meter, size: int, largest: int) -> None:
        self.work, self.losses, self.meter, self.size = work, losses, meter, size
        slots = [Slot(max(LEAST, 4 * largest)) for _ in range(3 * size + SPARE)]
        self._slots, self._free = slots, list(slots)
        self._children: list[Child] = []
        _reap()
        for _ in range(size):
            self._children.append(self._fork())
        self._closed = False

    def room(self) -> int:
        return len(self._free)

    def submit(self, keys: Any, where: Where, token: Token) -> Ticket:
        slot = self._free.pop()
        child = min(self._children, key=lambda child: len(child.has))
        ticket = Ticket(child, slot, where, self)
        child.has.append(ticket)
        file = io.BytesIO()
        slot.used = 0
        Pickler(file, slot).dump(keys)
        raw = file.getvalue()
        begin = slot.reserve(len(raw))
        if begin is not None:
            slot.memory[begin : begin + len(raw)] = raw
        try:
            child.pipe.send((self._slots.index(slot), raw if begin is None else (begin, begin + len(raw)), token))
        except (BrokenPipeError, ConnectionResetError):
            pass  # told when its result is asked for
        return ticket

    def receive(self, child: Child) -> None:
        """Takes the next answer of a process; waits for it."""
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
            self._free.append(ticket.slot)
            return
        if ticket.cancelled:
            ticket.answer = True, NOTHING
            self._free.append(ticket.slot)
        else:
            ticket.answer = True, self._unpack(raw, ticket.slot)

    def _unpack(self, raw: bytes, slot: Slot) -> Any:
        held = Held(slot)
        told = Unpickler(io.BytesIO(raw), held).load()
        if not held.tensors:
            self._free.append(slot)
        elif len(self._free) < 2 * self.size:
            # The consumer keeps many: what it keeps from here on is its own memory.
            held.tensors.clear()
            told = Unpickler(io.BytesIO(raw), Copied(slot)).load()
            self._free.append(slot)
        else:
            weakref.finalize(held.base, self._free.append, slot).atexit = False
            held.tensors.clear()
        return NOTHING if told is None else told[0]

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
        for slot in self._slots:
            slot.close()

    def __del__(self) -> None:
        self.close(wait=False)


def forked(live: Callable[[], None]) -> int:
    """A process that does `live`, and ends. Nothing that is garbage here is collected there: it may lie on a GPU, which
    a forked process cannot use, not even to let go of it."""
    pid = os.fork()
    if pid:
        return pid
    gc.freeze()
    try:
        live()
    finally:
        os._exit(0)


def end(pid: int, *, wait: bool) -> None:
    """Ends a process whose pipe was closed. Without `wait` it does so by itself, and is waited for later."""
    if not wait:
        _gone.append(pid)
        return
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def died(pid: int) -> DataError:
    """What is said of a process that is gone before its work was done."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        status = 0
    how = f"by signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "by itself"
    return DataError(
        f"A process that makes samples ended {how}.",
        advice="SIGKILL most often means that memory ran out: use fewer (parallel=1), or threads (kind='threads').",
    )


def _reap() -> None:
    for pid in list(_gone):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                _gone.remove(pid)
        except ChildProcessError:
            _gone.remove(pid)


# -- what passes between them ------------------------------------------------------------------------------------------


class Pickler(pickle.Pickler):
    """Tensors that lie in the slot are told by their place; others, and long texts, are put there, if they fit."""

    def __init__(self, file: io.BytesIO, slot: Slot) -> None:
        super().__init__(file, protocol=5)
        self._slot = slot
        self._begin = torch.frombuffer(slot.memory, dtype=torch.uint8, count=1).data_ptr()

    def persistent_id(self, value: Any) -> Any:
        if type(value) is bytes:
            return self._texts("text", [value]) if len(value) >= LONG else None
        if type(value) is list and value and all(type(item) is bytes for item in value):
            return self._texts("texts", value)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        if not value.is_contiguous() or not self._begin <= value.data_ptr() < self._begin + self._slot.size:
            lies = self._slot.allocate(tuple(value.shape), value.dtype)
            if not self._begin <= lies.data_ptr() < self._begin + self._slot.size:
                return None
            value = lies.copy_(value.detach())
        return value.data_ptr() - self._begin, str(value.dtype).removeprefix("torch."), tuple(value.shape)

    def _texts(self, kind: str, texts: list[bytes]) -> Any:
        """One after the other."""
        sizes = list(map(len, texts))
        begin = self._slot.reserve(sum(sizes))
        if begin is None:
            return None
        self._slot.memory.seek(begin)
        for text in texts:
            self._slot.memory.write(text)
        return begin, kind, sizes


class Held:
    """Tensors as views of a slot."""

    def __init__(self, slot: Slot) -> None:
        self.memory = slot.memory
        self.base = np.frombuffer(slot.memory, np.uint8)
        self.tensors: list[torch.Tensor] = []
        self.end = 0  # of what they take of the slot

    def tensor(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        count = math.prod(shape)
        made = torch.frombuffer(self.base, dtype=dtype, count=count, offset=at).view(shape)
        self.tensors.append(made)
        self.end = max(self.end, at + made.nbytes)
        return made


class Copied(Held):
    """Tensors of their own."""

    def tensor(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return super().tensor(at, dtype, shape).clone()


class Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: Held) -> None:
        super().__init__(file)
        self._held = held

    def persistent_load(self, told: Any) -> Any:
        at, kind, sizes = told
        if kind in ("text", "texts"):
            memory, ends = self._held.memory, itertools.accumulate(sizes, initial=at)
            texts = [memory[begin:end] for begin, end in itertools.pairwise(ends)]
            return texts if kind == "texts" else texts[0]
        return self._held.tensor(at, getattr(torch, kind), sizes)


def _place(number: int) -> str:
    """Stands for a sample's name, which a process does not know."""
    return f"\0{number}\0"


def _with_names(text: str, where: Where) -> str:
    return re.sub("\0(\\d+)\0", lambda found: where(int(found[1])), text)


def _named(error: Exception, where: Where) -> Exception:
    if isinstance(error, PacelineError):
        return type(error)(_with_names(error.message, where), advice=error.advice)
    return error


def _live(pipe: Connection, work: Work, slots: list[Slot]) -> None:
    """What a process does, until its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # and no pool of threads, which does not survive a fork
    while True:
        try:
            number, told, token = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        slot = slots[number]
        raw = told if isinstance(told, bytes) else slot.memory[slice(*told)]
        keys = Unpickler(io.BytesIO(raw), Copied(slot)).load()  # copies, as the result takes their place
        slot.used = 0
        began, busy = time.perf_counter(), time.process_time()
        losses = Losses(keeps=True)
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
