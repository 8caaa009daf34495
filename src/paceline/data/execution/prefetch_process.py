"""Prefetch process: runs the stages before a `prefetch`, so that their work never takes Python's lock from the script.

The process is forked when it is first needed, and serves all epochs. It plans the same stages anew, with threads and
processes of its own, and writes what comes out into slots of shared memory, as many ahead as there are slots. It ends
when its pipe does, so it is not left behind however this process ends.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from paceline.data.device.pinned_slots import Pinned
from paceline.data.error_policy import LostSamples
from paceline.data.execution.process_pool import died, end, forked, picklable
from paceline.data.execution.slots import Pickler, SlotPool
from paceline.data.metrics.meters import Meter
from paceline.data.planning.cursor import Context, Cursor, Mark, Opener
from paceline.data.planning.runtime import Runtime
from paceline.errors import DataError

SLOTS = 8  # results that lie ready, or that the consumer has
SPARE = 3  # … of which so many are never the consumer's: it gets copies before
GIVEN = 3  # slots that are given back at once, as it takes long to wake a process, while others lie ready
FIRST = 30.0  # seconds until the first result, after which something there is taken to hang
TOLD = 0.1  # seconds between two looks at what its stages cost
LOOK = 8  # results in a row for which there was always room: the script takes them as fast as they come

Planned = Callable[[], "tuple[Opener, Runtime]"]  # called in the process


class PrefetchProcess:
    """The process, seen from the script's. `meters` and `losses` are those of the same stages here. What comes next
    sets `pins` if it copies to a GPU, and keeps what it copies until then."""

    pins = False

    def __init__(self, planned: Planned, meters: Sequence[Meter], losses: LostSamples) -> None:
        self._planned, self.meters, self.losses = planned, list(meters), losses
        self._slots = SlotPool(0, 0)
        self.pinned: Pinned | None = None
        self._pid = 0
        self._pipe: Connection | None = None
        self._loops = 0
        self.lent = 0  # slots that are not the process's to fill: the consumer's, and those that are free here

    def open(self, context: Context, mark: Mark | None) -> PrefetchProcessCursor:
        if self._pipe is None:
            self._fork()
        assert self._pipe is not None
        self._loops += 1
        self._pipe.send(("open", self._loops, context, mark))
        return PrefetchProcessCursor(self, self._pipe, self._slots, self._loops)

    def _fork(self) -> None:
        largest = max((meter.bytes for meter in self.meters), default=0)
        self._slots = SlotPool(SLOTS, 2 * largest)
        self.pinned = Pinned(self._slots) if self.pins else None
        self.lent = 0
        ours, its = Pipe()

        def live() -> None:
            ours.close()
            _Server(its, self._slots, self._planned).live()

        self._pid = forked(live)
        its.close()
        self._pipe = ours

    def died(self) -> DataError:
        pid, self._pid = self._pid, 0
        self.close(wait=False)
        return died(pid)

    def close(self, *, wait: bool) -> None:
        """Ends the process. Another loop starts a new one."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError):  # the garbage collector may have closed it before this is gone
                pipe.close()
            if self._pid:
                end(self._pid, wait=wait)
            if self.pinned is not None:
                self.pinned.release()
            self._slots.close()

    def __del__(self) -> None:
        self.close(wait=False)


class PrefetchProcessCursor(Cursor):
    """One loop over what the process makes."""

    def __init__(self, home: PrefetchProcess, pipe: Connection, slots: SlotPool, number: int) -> None:
        self._home, self._pipe, self._slots, self._number = home, pipe, slots, number
        self._mark: Mark | None = None
        self._ended: BaseException | bool = False
        self._given = 0
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count and not self._ended:
            if (free := self._slots.free) and (len(free) >= GIVEN or not self.ready()):
                self._give_back()
            kind, *told = self._receive()
            if kind == "item":
                slot, raw, self._mark = told
                # A consumer that keeps many gets copies: what it keeps from here on is its own memory.
                many = self._home.lent - len(self._slots.free) > SLOTS - SPARE
                [value] = self._slots.lend(slot, raw, copy=many, pinned=self._home.pinned)
                found.append(value)
                self._given += 1
            elif kind == "end":
                error, mark = told
                self._ended, self._mark = pickle.loads(error) if error else True, mark or self._mark
        if not found and isinstance(self._ended, BaseException):
            error, self._ended = self._ended, True
            raise error
        return found

    def _receive(self) -> tuple[Any, ...]:
        """What the process says of this loop. Waits for it; of a loop that was left before, only slots are heard."""
        while True:
            if not self._given and not self._pipe.poll(FIRST):
                self._home.close(wait=True)
                raise DataError(f"A process that makes samples gave nothing in {FIRST:.0f} s.")
            try:
                number, costs, lost, told = self._pipe.recv()
            except (EOFError, OSError):
                raise self._home.died() from None
            self._home.lent += told[0] == "item"
            for meter, cost in zip(self._home.meters, costs, strict=False):
                meter.take_over(*cost)
            if number == self._number:
                for reason, policy in lost:
                    self._home.losses.lose(DataError(reason), policy)
                if told[0] == "opened":
                    self._mark = told[1]
                return tuple(told)
            if told[0] == "item":
                self._slots.free.append(told[1])

    def _give_back(self) -> None:
        free = self._slots.free
        numbers = [free.popleft() for _ in range(len(free))]  # others may be appended meanwhile
        if numbers:
            self._home.lent -= len(numbers)
            self._send(("slots", numbers))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            pass  # told when the next result is asked for

    def ready(self) -> bool:
        """Where nothing is, the process gets all it can fill."""
        if self._ended:
            return False
        if self._poll.poll(0):
            return True
        self._give_back()
        return False

    def mark(self) -> Mark:
        while self._mark is None:
            self._receive()
        return self._mark

    def close(self, *, wait: bool = True) -> None:
        """The process goes on with the next loop; what it has made of this one is left."""
        if not self._ended:
            self._ended = True
            self._send(("close", self._number))


class _Server:
    """What the process does."""

    def __init__(self, pipe: Connection, slots: SlotPool, planned: Planned) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)  # and no pool of threads, which does not survive a fork
        self._pipe, self._slots = pipe, slots
        self._opener, self._runtime = planned()
        self._free = deque(range(len(slots)))
        self._cursor: Cursor | None = None
        self._number = 0
        self._told, self._before = 0.0, [meter.sums() for meter in self._runtime.meters]
        self._with_room = 0
        self._runtime.pace.is_slow = False

    def live(self) -> None:
        """Makes what there is room for, and looks after each what is wanted. Until the pipe ends."""
        try:
            while True:
                # One thread is enough as long as it is ahead: others would only take Python's lock from it.
                self._with_room = self._with_room + 1 if self._free else 0
                self._runtime.pace.is_slow = self._with_room >= LOOK
                while self._cursor is None or not self._free or self._pipe.poll():
                    self._obey(*self._pipe.recv())
                self._make(self._cursor)
        except (EOFError, OSError):
            return

    def _obey(self, what: str, *told: Any) -> None:
        if what == "slots":
            self._free.extend(told[0])
            return
        if self._cursor is not None and (what == "open" or told[0] == self._number):
            self._cursor.close()
            self._cursor = None
        if what == "open":
            self._number, context, mark = told
            try:
                self._cursor = self._opener(context, mark)
                self._say("opened", self._cursor.mark())
            except Exception as error:
                self._say("end", picklable(error), None)

    def _make(self, cursor: Cursor) -> None:
        number = self._free.popleft()
        slot = self._slots[number]
        slot.used = 0
        try:
            got = cursor.take(1)
            if len(got):
                file = io.BytesIO()
                Pickler(file, slot).dump((got[0],))
                self._say("item", number, file.getvalue(), cursor.mark())
                return
            last, error = cursor.mark(), b""
        except Exception as problem:
            last, error = None, picklable(problem)
        self._free.appendleft(number)
        self._cursor = None
        cursor.close()
        self._say("end", error, last)

    def _say(self, *told: Any) -> None:
        losses, now = self._runtime.losses, time.perf_counter()
        lost, losses.kept = losses.kept, []
        costs: list[Any] = []
        if told[0] != "item" or now - self._told > TOLD:
            self._told, sums = now, [meter.sums() for meter in self._runtime.meters]
            for meter, new, old in zip(self._runtime.meters, sums, self._before, strict=True):
                costs.append(([a - b for a, b in zip(new, old, strict=True)], meter.settings()))
            self._before = sums
        self._pipe.send((self._number, costs, lost, told))
