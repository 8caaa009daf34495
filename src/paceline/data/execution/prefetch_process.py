"""Prefetch process: runs the stages before a `prefetch`, so that their work never takes the GIL from the script.

The process is forked when it is first needed, and serves all epochs. It plans the same stages again, with its own
threads and processes, and writes results into slots of shared memory until all slots are full. The process ends when
its pipe is closed, so it does not outlive the script's process.
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

from paceline.data.error_policy import LostSamples
from paceline.data.execution.engines import Runtime
from paceline.data.execution.process_pool import died, end, forked, picklable
from paceline.data.execution.slots import Pickler, Pinned, SlotPool
from paceline.data.meters import Meter
from paceline.data.planning.nodes import Context, Cursor, Mark, Opener
from paceline.errors import DataError

SLOTS = 8  # results that are ready or that the consumer holds, at most
SPARE = 3  # slots that the consumer never holds: it gets copies instead
GIVEN = 3  # slots that are returned together while results are ready, because waking the process is slow
FIRST = 30.0  # seconds without a first result after which the process counts as hanging
REPORTS = 0.1  # seconds between two reports of the stages' cost
LOOK = 8  # results in a row with a free slot, after which the script counts as faster than the process

Planned = Callable[[], "tuple[Opener, Runtime]"]  # plans the stages; called in the prefetch process


class PrefetchProcess:
    """The script's side of the process. `meters` and `losses` are those of the same stages in the script's process. A
    stage after the prefetch that copies to a GPU sets `pins`, and keeps tensors until they are copied."""

    pins = False

    def __init__(self, planned: Planned, meters: Sequence[Meter], losses: LostSamples) -> None:
        self._planned, self.meters, self.losses = planned, list(meters), losses
        self._slots = SlotPool(0, 0)
        self.pinned: Pinned | None = None
        self._pid = 0
        self._pipe: Connection | None = None
        self._loops = 0
        self.lent = 0  # slots on this side: those that the consumer holds, and those that are free but not returned

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
            with contextlib.suppress(OSError):  # the garbage collector may have closed the pipe already
                pipe.close()
            if self._pid:
                end(self._pid, wait=wait)
            if self.pinned is not None:
                self.pinned.release()
            self._slots.close()

    def __del__(self) -> None:
        self.close(wait=False)


class PrefetchProcessCursor(Cursor):
    """One loop over the results of the process."""

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
            kind, *message = self._receive()
            if kind == "item":
                slot, raw, self._mark = message
                # A consumer that holds many batches gets copies, so that slots do not run out.
                many = self._home.lent - len(self._slots.free) > SLOTS - SPARE
                [value] = self._slots.lend(slot, raw, copy=many, pinned=self._home.pinned)
                found.append(value)
                self._given += 1
            elif kind == "end":
                error, mark = message
                self._ended, self._mark = pickle.loads(error) if error else True, mark or self._mark
        if not found and isinstance(self._ended, BaseException):
            error, self._ended = self._ended, True
            raise error
        return found

    def _receive(self) -> tuple[Any, ...]:
        """Waits for the next message about this loop. Of messages about an earlier loop, only the slots are used."""
        while True:
            if not self._given and not self._pipe.poll(FIRST):
                self._home.close(wait=True)
                raise DataError(f"A process that makes samples returned no result within {FIRST:.0f} s.")
            try:
                number, costs, lost, message = self._pipe.recv()
            except (EOFError, OSError):
                raise self._home.died() from None
            self._home.lent += message[0] == "item"
            for meter, cost in zip(self._home.meters, costs, strict=False):
                meter.take_over(*cost)
            if number == self._number:
                for reason, policy in lost:
                    self._home.losses.lose(DataError(reason), policy)
                if message[0] == "opened":
                    self._mark = message[1]
                return tuple(message)
            if message[0] == "item":
                self._slots.free.append(message[1])

    def _give_back(self) -> None:
        free = self._slots.free
        numbers = [free.popleft() for _ in range(len(free))]  # finalizers may append more meanwhile
        if numbers:
            self._home.lent -= len(numbers)
            self._send(("slots", numbers))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            pass  # reported when the next result is asked for

    def ready(self) -> bool:
        """Whether a result is ready. If not, returns all free slots to the process."""
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
        """Ends this loop: the process drops its results, and waits for the next loop."""
        if not self._ended:
            self._ended = True
            self._send(("close", self._number))


class _Server:
    """The loop of the prefetch process."""

    def __init__(self, pipe: Connection, slots: SlotPool, planned: Planned) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)  # torch's thread pool does not survive a fork
        self._pipe, self._slots = pipe, slots
        self._opener, self._runtime = planned()
        self._free = deque(range(len(slots)))
        self._cursor: Cursor | None = None
        self._number = 0
        self._reported, self._before = 0.0, [meter.sums() for meter in self._runtime.meters]
        self._with_room = 0
        self._runtime.pace.is_slow = False

    def live(self) -> None:
        """Makes results while slots are free, and handles messages after each result, until the pipe is closed."""
        try:
            while True:
                # One thread is enough as long as it keeps up: more threads would only contend for the GIL.
                self._with_room = self._with_room + 1 if self._free else 0
                self._runtime.pace.is_slow = self._with_room >= LOOK
                while self._cursor is None or not self._free or self._pipe.poll():
                    self._obey(*self._pipe.recv())
                self._make(self._cursor)
        except (EOFError, OSError):
            return

    def _obey(self, what: str, *details: Any) -> None:
        if what == "slots":
            self._free.extend(details[0])
            return
        if self._cursor is not None and (what == "open" or details[0] == self._number):
            self._cursor.close()
            self._cursor = None
        if what == "open":
            self._number, context, mark = details
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

    def _say(self, *message: Any) -> None:
        losses, now = self._runtime.losses, time.perf_counter()
        lost, losses.kept = losses.kept, []
        costs: list[Any] = []
        if message[0] != "item" or now - self._reported > REPORTS:
            self._reported, sums = now, [meter.sums() for meter in self._runtime.meters]
            for meter, new, old in zip(self._runtime.meters, sums, self._before, strict=True):
                costs.append(([a - b for a, b in zip(new, old, strict=True)], meter.settings()))
            self._before = sums
        self._pipe.send((self._number, costs, lost, message))
