"""The background thread of a rank: tells rank 0 what this rank has submitted, and carries out what rank 0 decides.

Nothing runs while nothing is submitted: the thread sleeps until a submission or a message. Submissions that no thread
waits for yet, such as gradients during backward, are collected for one cycle (1 ms), so that they can be fused; small
ones for some cycles, as a negotiation costs more than they gain by an early start. As soon as a thread waits for a
result, all that is collected goes at once.

Any thread may submit and wait. If a rank leaves or is gone, the operations in flight fail on all other ranks.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from typing import Any

from paceline.errors import PacelineError
from paceline.horovod.engine.autotune import Autotuner
from paceline.horovod.engine.coordinator import Coordinator
from paceline.horovod.engine.exchange import ProcessSets
from paceline.horovod.engine.execution import Job, Known, Runner, fuse
from paceline.horovod.engine.lines import Line, LineClosed
from paceline.horovod.engine.lines import connect as connect_lines
from paceline.horovod.engine.membership import Membership
from paceline.horovod.engine.messages import (
    ADD_SET,
    BARRIER,
    CACHED,
    REMOVE_SET,
    Agreed,
    Ready,
    Response,
    bits_from_bytes,
    bits_to_bytes,
    encode,
    ready_decoder,
    response_decoder,
    slots_of,
)
from paceline.horovod.engine.operation import Operation
from paceline.horovod.engine.timeline import Timeline
from paceline.horovod.exceptions import HorovodInternalError
from paceline.settings import HorovodSettings
from paceline.threads import Bell

AWAKE, COLLECTING, COLLECTING_SMALL, IDLE = range(4)
SMALL = 1 << 20  # bytes: with less in the queue …
SMALL_CYCLES = 10  # … submissions are collected for so many cycles
SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution."
)
DUPLICATE = (
    "Requested to collective operation a tensor with the same name as another tensor that is currently being "
    "processed.  If you want to request another tensor, use a different tensor name. The name is {name}."
)


class Controller:
    """Between `start` and `stop`."""

    def __init__(self, member: Membership, settings: HorovodSettings, store: Any) -> None:
        """Every rank calls it; waits for all. `store` is for this controller only."""
        self.member, self.settings = member, settings
        self.sets = ProcessSets(store, member)
        self.sets.add(0, tuple(range(member.size)))
        self._lines: dict[int, Line] = connect_lines(store, member) if member.size > 1 else {}
        self._coordinator = Coordinator(member.size, settings.cache_capacity) if member.rank == 0 else None
        self._runner = Runner(self.sets)
        self._stalls = StallInspector(settings)
        self._tuner = Autotuner(settings) if settings.autotune and member.rank == 0 else None
        self._fusion_threshold, self._cycle_time = settings.fusion_threshold, settings.cycle_time
        self._lock = threading.Lock()  # guards the fields up to _ended
        self._operations: dict[str, Operation] = {}  # in flight, by key
        self._queue: list[Operation] = []  # not yet told to rank 0
        self._queued = 0  # bytes
        self._state, self._urgent, self._joining, self._leaving = AWAKE, False, False, False
        self._ended = ""
        self._join: Operation | None = None
        self._counters: dict[str, int] = {}
        self._joins = 0
        self._names: dict[str, tuple[int, tuple[Any, ...]]] = {}  # response cache: bit and signature, by key
        self._slots: dict[int, Known] = {}
        self._heard = 0
        self._first = 0.0  # since when the queue is collected
        self._poll, self._bell = select.poll(), Bell()
        self._poll.register(self._bell, select.POLLIN)
        for line in self._lines.values():
            self._poll.register(line, select.POLLIN)
        self._by_descriptor = {line.fileno(): rank for rank, line in self._lines.items()}
        self._thread = threading.Thread(target=self._run, name="paceline-horovod", daemon=True)

    # -- for the threads of the script -----------------------------------------------------------------------------

    def start(self) -> None:
        if self.settings.timeline and self.settings.timeline.upper() != "DYNAMIC":
            self.start_timeline(self.settings.timeline, marks_cycles=self.settings.timeline_cycles)
        self._thread.start()

    def stop(self) -> None:
        """Ends Horovod on all ranks: operations in flight fail."""
        with self._lock:
            self._leaving = True
        self._bell.ring()
        self._thread.join()
        self._bell.close()
        self.stop_timeline()

    def start_timeline(self, path: str, *, marks_cycles: bool) -> None:
        """Begins a timeline of all ranks' operations, in a file of rank 0."""
        self.stop_timeline()
        if self._coordinator is not None:
            self._runner.timeline = Timeline(path, marks_cycles=marks_cycles)
            self._coordinator.on_arrival = self._runner.timeline.arrived

    def stop_timeline(self) -> None:
        if self._coordinator is not None and self._runner.timeline is not None:
            self._coordinator.on_arrival = None
            timeline, self._runner.timeline = self._runner.timeline, None
            timeline.close()

    @property
    def is_running(self) -> bool:
        return not self._ended

    def submit(self, operation: Operation) -> None:
        """Hands an operation over. ValueError if one of this name is in flight."""
        with self._lock:
            if self._ended:
                raise HorovodInternalError(self._ended)
            if operation.key in self._operations:
                raise ValueError(DUPLICATE.format(name=operation.name))
            self._operations[operation.key] = operation
            self._queue.append(operation)
            self._queued += operation.bytes
            wakes = self._state == IDLE or (self._state == COLLECTING_SMALL and self._queued >= SMALL)
            if wakes:
                self._state = AWAKE
        if wakes:
            self._bell.ring()

    def wait(self, operation: Operation) -> Any:
        """The result of a submitted operation, which is sent at once. HorovodInternalError if it fails."""
        if not operation.is_done:
            self.hurry()
        return operation.wait()

    def hurry(self) -> None:
        """A thread waits: what is collected is sent without waiting for the end of the cycle."""
        with self._lock:
            if not self._queue:
                return
            wakes, self._urgent = self._state != AWAKE, True
        if wakes:
            self._bell.ring()

    def join(self, operation: Operation, device: int) -> None:
        """Says that this rank has no more data. The operation ends with the rank that joined last. Zeros for other
        ranks' operations on GPUs are made on this GPU."""
        with self._lock:
            if self._ended:
                raise HorovodInternalError(self._ended)
            if self._join is not None:
                raise ValueError(DUPLICATE.format(name="join"))
            self._join, self._joining, self._runner.join_device = operation, True, max(0, device)
        self._bell.ring()

    def make_name(self, kind: str) -> str:
        """A name for an operation to which the script gave none. The counters start anew after each join, at which
        ranks may have made different numbers of operations."""
        with self._lock:
            number = self._counters[kind] = self._counters.get(kind, 0) + 1
            return f"{kind}.noname.{number}" if not self._joins else f"{kind}.noname.{self._joins}.{number}"

    # -- the background thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                self._cycle()
        except LineClosed:
            self._end(f"Rank 0 is gone. {SHUT_DOWN}")
        except PacelineError as error:  # a peer died within a collective
            self._tell_end(f"{error.message} {SHUT_DOWN}")
        except BaseException as error:
            self._tell_end(f"{type(error).__name__}: {error}. {SHUT_DOWN}")
        finally:
            for line in self._lines.values():
                line.close()

    def _cycle(self) -> None:
        ready, timeout = self._collect()
        if ready is not None:
            if (timeline := self._runner.timeline) is not None:
                timeline.cycle()
            self._say(ready)
            timeout = 0.0
        for descriptor, _ in self._poll.poll(timeout if timeout is None else timeout * 1000):
            if descriptor == self._bell.fileno():
                self._bell.clear()
            else:
                self._hear(self._by_descriptor[descriptor])
        self._state = AWAKE
        if self._coordinator is None:
            return
        if self._coordinator.has_pending and self._stalls.is_due():
            self._coordinator.ended = self._coordinator.ended or self._stalls.look(self._coordinator.missing())
        if (response := self._coordinator.decide()) is not None:
            self._announce(response)

    def _collect(self) -> tuple[Ready | None, float | None]:
        """What this rank has to say now; or else how long to sleep."""
        with self._lock:
            joins, leaves = self._joining, self._leaving
            if not (self._queue or joins or leaves):
                self._state, self._first, self._urgent = IDLE, 0.0, False
                return None, self._pause()
            if not (self._urgent or joins or leaves):
                now = time.monotonic()
                self._first = self._first or now
                is_small = self._queued < SMALL
                left = self._first + self._cycle_time * (SMALL_CYCLES if is_small else 1) - now
                if left > 0:
                    self._state = COLLECTING_SMALL if is_small else COLLECTING
                    return None, left
            queue, self._queue, self._queued = self._queue, [], 0
            self._first, self._urgent, self._joining = 0.0, False, False
        bits, requests = 0, []
        for operation in queue:
            known = self._names.get(operation.key)
            if known is not None and known[1] == operation.signature:
                bits |= known[0]
            else:
                requests.append(operation.request())
        return Ready(bits_to_bytes(bits), requests, self._heard, joins, leaves), 0.0

    def _pause(self) -> float | None:
        """How long to sleep if nothing happens. Rank 0 looks after operations that wait for other ranks."""
        return self._stalls.every if self._coordinator is not None and self._coordinator.has_pending else None

    def _say(self, ready: Ready) -> None:
        if self._coordinator is not None:
            self._coordinator.accept(0, ready)
        else:
            self._lines[0].send(encode(ready))

    def _hear(self, rank: int) -> None:
        try:
            messages = self._lines[rank].receive()
        except LineClosed:
            if self._coordinator is None:
                raise
            self._poll.unregister(self._lines[rank])
            if not self._coordinator.ended:
                self._coordinator.ended = f"Rank {rank} is gone. {SHUT_DOWN}"
            return
        for message in messages:
            if self._coordinator is not None:
                self._coordinator.accept(rank, ready_decoder.decode(message))
            else:
                self._carry_out(response_decoder.decode(message))

    def _announce(self, response: Response) -> None:
        if self._tuner is not None:
            response = self._tuner.apply(response)
        raw = encode(response)
        for line in self._lines.values():
            try:
                line.send(raw)
            except LineClosed:
                continue  # heard of at the next poll
        self._carry_out(response)

    def _tell_end(self, reason: str) -> None:
        """This rank cannot go on. Rank 0 tells the others; they see the end of another rank's line."""
        if self._coordinator is not None:
            raw = encode(Response(0, b"", [], ended=reason))
            for line in self._lines.values():
                try:
                    line.send(raw)
                except LineClosed:
                    continue
        self._end(reason)

    def _end(self, reason: str) -> None:
        with self._lock:
            self._ended = SHUT_DOWN if reason == "shutdown" else reason
            left, self._operations = list(self._operations.values()), {}
            if self._join is not None:
                left.append(self._join)
        for operation in left:
            operation.fail(self._ended)

    # -- what all ranks do -----------------------------------------------------------------------------------------

    def _carry_out(self, response: Response) -> None:
        if response.fusion_threshold >= 0:
            self._fusion_threshold, self._cycle_time = response.fusion_threshold, response.cycle_time
        jobs: list[Job] = []
        bits = bits_from_bytes(response.bits)
        if bits:
            found = map(self._slots.__getitem__, slots_of(bits))
            members, operations = self.sets.memberships, self._operations
            jobs = [Job(known, operations.get(known.key)) for known in found if known.request.process_set in members]
        for slot in response.evicted:
            old = self._slots.pop(slot)
            self._names.pop(old.key, None)
        for agreed in response.agreed:
            self._admit(agreed, jobs)
        self._heard = response.number
        self._perform(jobs)
        if self._tuner is not None:
            self._tuner.observe(sum(job.known.bytes for job in jobs))
        if response.last_joined >= 0:
            self._finish_join(response.last_joined)
        if response.ended:
            self._end(response.ended)

    def _admit(self, agreed: Agreed, jobs: list[Job]) -> None:
        request = agreed.request
        known = Known(agreed)
        own = self._operations.get(known.key)
        if (timeline := self._runner.timeline) is not None and (agreed.error or request.kind not in CACHED):
            timeline.agreed(request)  # nothing is carried out
        if agreed.error:
            if own is not None:
                self._forget([own])
                own.fail(agreed.error)
        elif request.kind in (ADD_SET, REMOVE_SET, BARRIER):
            self._perform(jobs)  # what comes before may be in a set that is removed
            jobs.clear()
            if request.kind == ADD_SET and agreed.slot >= 0:
                self.sets.add(agreed.slot, request.ranks)
            elif request.kind == REMOVE_SET:
                self.sets.remove(request.root)
            if own is not None:
                self._forget([own])
                own.finish(agreed.slot)
        else:
            if agreed.slot >= 0:
                self._slots[agreed.slot] = known
                if own is not None:
                    self._names[known.key] = 1 << agreed.slot, own.signature
            if self.sets.has_member(request.process_set):
                jobs.append(Job(known, own))

    def _perform(self, jobs: list[Job]) -> None:
        for batch in fuse(jobs, self._fusion_threshold):
            results = self._runner.run(batch)
            self._forget([job.own for job in batch if job.own is not None])
            for (_, own), result in zip(batch, results, strict=True):
                if own is not None:
                    own.result = result
                    own.lock.release()

    def _forget(self, operations: list[Operation]) -> None:
        """Their names may be used again."""
        with self._lock:
            for operation in operations:
                del self._operations[operation.key]

    def _finish_join(self, last: int) -> None:
        with self._lock:
            join, self._join = self._join, None
            self._joins, self._counters = self._joins + 1, {}
        if join is not None:
            join.finish(last)


# -- the controller of this process, between `init` and `shutdown`

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

_current: Controller | None = None
_dynamic = False


def current() -> Controller | None:
    return _current


def set_current(controller: Controller, *, dynamic: bool) -> None:
    """`dynamic`: process sets may be added and removed."""
    global _current, _dynamic
    _current, _dynamic = controller, dynamic or controller.settings.dynamic_process_sets


def take_current() -> Controller | None:
    """The controller, which is no longer the process's."""
    global _current
    found, _current = _current, None
    return found


def required() -> Controller:
    """The controller. ValueError before `init`."""
    if _current is None:
        raise ValueError(NOT_INITIALIZED)
    return _current


def sets_may_change() -> bool:
    return _dynamic


# -- stalls -----------------------------------------------------------------------------------------------------------
# A rank that took another branch, or that is busy, lets all others wait without a word. Rank 0 knows what each rank has
# submitted, and says on standard error which ranks and tensors are missing.


MOST_NAMES = 20  # in a report, for each rank


class StallInspector:
    """Used by rank 0's background thread, which wakes every `every` seconds while something is pending."""

    def __init__(self, settings: HorovodSettings) -> None:
        self._report_after, self._end_after = settings.stall_check, settings.stall_shutdown
        asked = [seconds for seconds in (self._report_after, self._end_after) if seconds > 0]
        self.every = min([1.0, *(seconds / 4 for seconds in asked)]) if self._report_after > 0 else None
        self._since: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether it is time to `look` again."""
        return self.every is not None and time.monotonic() >= self._next

    def look(self, missing: dict[str, tuple[float, list[int]]]) -> str:
        """`missing`: seconds, and the ranks that have not submitted it, of each tensor. Returns why Horovod ends, or ""
        if it goes on."""
        now = time.monotonic()
        self._next = now + (self.every or 1.0) / 2
        self._since = {name: min(self._since.get(name, now), now - seconds) for name, (seconds, _) in missing.items()}
        self._reported = {name: at for name, at in self._reported.items() if name in missing}
        late = {name for name, since in self._since.items() if now - since >= self._report_after}
        if new := {name for name in late if now - self._reported.get(name, -self._report_after) >= self._report_after}:
            self._reported.update(dict.fromkeys(new, now))
            print(self._report({name: missing[name][1] for name in new}), file=sys.stderr, flush=True)
        if self._end_after > 0:
            lost = {name: missing[name][1] for name in late if now - self._since[name] >= self._end_after}
            if lost:
                return f"Tensors were stalled for more than {self._end_after:g} seconds.{_by_rank(lost)}"
        return ""

    def _report(self, absent: dict[str, list[int]]) -> str:
        return (
            "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
            f"waiting for remainder of ranks for more than {self._report_after:g} seconds. This may indicate that "
            "different ranks are trying to submit different tensors or that only subset of ranks is submitting "
            f"tensors, which will cause deadlock.{_by_rank(absent)}"
        )


def _by_rank(absent: dict[str, list[int]]) -> str:
    ranks = sorted({rank for missing in absent.values() for rank in missing})
    lines = ["\nMissing ranks:"]
    for rank in ranks:
        names = sorted(name for name, missing in absent.items() if rank in missing)
        more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines.append(f"{rank}: [{', '.join(names[:MOST_NAMES])}{more}]")
    return "\n".join(lines)
