"""Watches the workers of one run until all have ended: one thread, one loop.

Its sources are the hosts (which workers were forked, which ended, their heartbeats and failures, rank 0's output) and
the launcher's own signals. The loop always ends when every host reports that no process is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from paceline import threads
from paceline.errors import LaunchError, PacelineError, RecordError
from paceline.launch import messages
from paceline.launch.events import Asking, Checking, Event, Notice, Output, Progress, Stall
from paceline.launch.failures import stall
from paceline.launch.failures.failure import Failure, Failures, Left, killed_or_exited, raised
from paceline.launch.host import FromWorker, FromZygote, Host, HostLostError
from paceline.launch.interrupts import Signals
from paceline.launch.voice import Voice, sees_slices
from paceline.record import last_step, stopping
from paceline.record.folder import log_path
from paceline.record.logs import open_log
from paceline.record.schema import FailureKind
from paceline.record.servers import read_reports
from paceline.settings import JOINED, PREEMPTED, RunSettings
from paceline.strategies import catalog as strategies
from paceline.units import count
from paceline.wire.store import ROOM, left_key, left_text

_TICK = 0.2  # seconds between two checks of the deadlines
_GRACE_INTERRUPTED = 10.0  # seconds that a script has to end after SIGINT or SIGTERM
_GRACE_SAVING = 25.0  # … if it saves its state first; Kubernetes, among others, waits for 30
_GRACE_FAILED = 1.0  # seconds that a script has to end after another worker failed
_ANSWERS = 2.0  # seconds to wait for the workers' stacks
_STALE = 10.0  # seconds after which a report of a stall is made again before the run is ended
_AWAY = 5.0  # seconds between two turns: the launcher was stopped meanwhile
_SWEEPING = 15.0  # seconds that the zygote has to end its child processes, after the workers were killed
_SWEEPING_INSISTED = 5.0  # … and after a second Ctrl-C
_FAREWELL = 1.0  # seconds to wait for the last heartbeat of a worker that ended by itself


class Watch:
    """The state of one run while it runs and, after `until_swept`, how the run ended. Used in a `with` block: when the
    block fails, all remaining processes are killed."""

    def __init__(
        self,
        run: RunSettings,
        *,
        hosts: Sequence[Host],
        signals: Signals,
        record: Path,
        on_event: Callable[[Event], None],
        limit: float | None = None,
        put: Callable[[str, bytes], None] | None = None,
        on_lost: Callable[[Host], None] = lambda host: None,
    ) -> None:
        """`put`: sets a key of the workers' store, for an elastic run. `on_lost`: is called when such a run goes on
        without a host."""
        self._hosts, self._signals, self._record, self._tell = hosts, signals, record, on_event
        self._least, self._most, self._put, self._lost = run.elastic, run.most, put, list[Failure]()
        self._on_lost = on_lost
        self._generation, self._gone = (
            0,
            set[Host](),
        )  # how often workers were lost; hosts that the others go on without
        self._saves, self._codes = run.saving is not None, dict[int, int]()  # exit codes, by rank
        self.saves_to = run.saving.folder if run.saving is not None else ""
        self._writes_files = run.staged and run.launch_as is None
        self._voice = Voice(alike=run.launch_as is None, by_lines=sees_slices(run))
        self._host_of = {rank: host for host in hosts for rank in host.ranks}
        self.standings = [stall.WorkerStanding(rank, host=self._host_of[rank].name) for rank in range(run.workers)]
        self.interrupted: int | None = None
        self.cause: Failure | None = None
        self.notices: list[str] = []
        self.not_in_force: dict[str, str] = {}
        self.pids: dict[int, int] = {}  # rank → process id
        self._inspector = stall.Inspector(run.stall_warning, run.stall_abort, tells_quiet=run.staged)
        self._failures = Failures(own_group=run.launch_as is not None)
        self._lockstep = strategies.parse(run.strategy).entry.lockstep
        self._done_without: set[int] = set()  # ranks that have failed, and that the others go on without
        self._live: set[int] = set()
        self._ended_well: set[int] = set()
        self._farewell_by: dict[int, float] = {}  # ranks that ended by themselves, whose last heartbeat may be unread
        self._kill_at: float | None = None
        self._give_up_at: float | None = None  # when to stop waiting for the zygotes
        self._limit, self._begun = limit, 0.0
        self._stalled: stall.Stalled | None = None  # a report waits for stacks until _answers_by
        self._answers_by = 0.0
        self._reported_at = self._turned_at = float("-inf")
        self._asked: set[int] = set()  # ranks that were asked for their stack
        self._stacks: dict[int, str] = {}
        self._asking = False
        self._checking = ""
        self._progress_at = 0.0
        self._fresh = False
        self._logs = {0: open_log(record, 0)}
        self._poller, self._polled = zmq.Poller(), list[Any]()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Runs until something is so, or a signal interrupts the run."""
        while not is_so() and self.interrupted is None:
            self._turn()

    def begin(self) -> None:
        """Forks the workers of all hosts, and waits until they run; on a host where a signal interrupted the run before
        the fork, there is none."""
        self._begun = time.monotonic()
        self._live = {rank for host in self._hosts for rank in host.ranks}
        for host in self._hosts:
            host.spawn()
        while any(host.ranks[0] not in self.pids and not host.swept for host in self._hosts):
            self._turn()

    def until_swept(self) -> None:
        """Runs until all workers and their child processes ended, and all their messages and output were read."""
        while self._farewell_by or not all(host.is_over() for host in self._hosts):
            self._turn()
        if self._failures and self.cause is None and self.interrupted is None:
            self.cause = self._failures.cause(self._steps())
        elif self._generation and self._writes_files and self.interrupted is None and self.cause is None:
            self.cause = self._unwritten()

    def end_now(self) -> None:
        """Kills all remaining processes. For any error in the launcher itself."""
        left = [host for host in self._hosts if not host.swept]
        for host in left:
            host.signal(signal.SIGKILL)
        deadline = time.monotonic() + _SWEEPING
        while any(not host.swept for host in left) and time.monotonic() < deadline:
            ready = self._poll()
            for host in left:
                for _ in host.take(ready):
                    pass
        self._do_without_zygotes()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(PacelineError):
                self.end_now()
        for log in self._logs.values():
            os.close(log)

    @property
    def _swept(self) -> bool:
        return all(host.swept for host in self._hosts)

    def _poll(self) -> dict[Any, int]:
        sources = [self._signals.bell, *(source for host in self._hosts for source in host.sources())]
        if sources != self._polled:
            self._poller, self._polled = zmq.Poller(), sources
            for source in dict.fromkeys(sources):
                self._poller.register(source, zmq.POLLIN)
        return dict(self._poller.poll(int(1000 * _TICK)))

    def _turn(self) -> None:
        threads.check()
        ready = self._poll()
        now = time.monotonic()
        if now - self._turned_at > _AWAY:
            self._inspector.excuse(now)
        self._turned_at = now
        lost: dict[Host, HostLostError] = {}
        for host in [host for host in self._hosts if host not in self._gone]:
            try:
                self._take(host, ready)
            except HostLostError as error:
                lost[host] = error
        if lost:
            self._lose(lost)
        if self._signals.bell.fileno() in ready:
            self._signals.bell.clear()
            while self._signals.warned:
                self._signal_all(self._signals.warned.pop(0))
                self._tell(Notice("SIGUSR1 was passed on to the workers whose script handles it."))
            while self._signals.came:
                self._interrupt(self._signals.came.pop(0))
        self._look_at_the_clock(time.monotonic())
        for host in self._hosts if self.interrupted is None else ():
            if said := host.look(time.monotonic()):
                self._tell(Stall(said))

    def _take(self, host: Host, ready: dict[Any, int]) -> None:
        for happened in host.take(ready):
            if isinstance(happened, tuple):
                self._hear(*happened)
            elif isinstance(happened, Output):
                self._show(happened)
            else:
                self._from_zygote(host, happened)

    def _from_zygote(self, host: Host, message: FromZygote) -> None:
        if isinstance(message, messages.Forked):
            for rank, pid in zip(host.ranks, message.pids, strict=True):
                self.pids[rank] = self.standings[rank].pid = pid
                self.standings[rank].born = time.monotonic()
        elif isinstance(message, messages.Ended):
            now = time.monotonic()
            self._live.discard(message.rank)
            well = message.code == 0 or (self._saves and message.code in (PREEMPTED, JOINED))
            self._codes[message.rank] = message.code
            if well:
                self._ended_well.add(message.rank)
            self.standings[message.rank].ended = True
            if message.code >= 0 and not self._said_farewell(message.rank):
                self._farewell_by[message.rank] = now + _FAREWELL
            elif well:
                self._leaves(message.rank)
            if not well and self._kill_at is None:
                self._fail(killed_or_exited(message.rank, message.code, now))

    def _fail(self, failure: Failure) -> None:
        """A worker has failed: the run fails, unless its workers go at their own pace and this is not rank 0, or unless
        it is elastic and the worker was killed."""
        is_lost = self._least is not None and failure.kind is FailureKind.KILLED
        if is_lost and not self._live and failure.rank != self._voice.rank and self._voice.rank in self._ended_well:
            self._lost.append(failure)  # on its way out, after the worker that speaks for the run
        elif is_lost and len(self._live) >= max(self._least or 0, 1):
            self._go_on_without([failure], f"Worker {failure.rank} {failure.cause}")
            if self._most is not None and self._put is not None:
                self._put(ROOM, b"")  # a new worker has room where this one was; that of a lost host has none
        elif self._lockstep or failure.rank == 0:
            for lost in self._lost if failure.kind is FailureKind.CONSEQUENCE else ():
                self._failures.add(lost)
            self._failures.add(failure)
        elif failure.rank not in self._done_without:
            self._done_without.add(failure.rank)
            notice = f"Worker {failure.rank} {failure.cause.splitlines()[0]}; the others go on without it."
            self.notices.append(notice)
            self._tell(Notice(notice))

    def _lose(self, errors: dict[Host, HostLostError]) -> None:
        """Hosts are lost: the run fails, unless it is elastic and enough workers are left. They then form one new
        group, however many hosts are lost at once."""
        lost = {rank for host in errors for rank in host.ranks} & self._live
        if self._least is None or self._kill_at is not None or len(self._live) - len(lost) < max(self._least, 1):
            first = next(iter(errors.values()))
            # A run that was told to end does not start again on the hosts that are left.
            raise first if self.interrupted is None else LaunchError(first.message, advice=first.advice)
        now, failures = time.monotonic(), list[Failure]()
        for host, error in errors.items():
            self._gone.add(host)
            host.destroy()
            self._on_lost(host)
            cause = f"was on the host {host.name}, which is lost: {error.why}"
            for rank in sorted(lost & {*host.ranks}):
                self.standings[rank].ended = True
                self._live.discard(rank)
                self._farewell_by.pop(rank, None)
                failures.append(Failure(rank=rank, kind=FailureKind.KILLED, at=now, cause=cause, exit_code=1))
        self._go_on_without(failures, " ".join(error.message for error in errors.values()).rstrip("."))

    def _go_on_without(self, failures: list[Failure], what: str) -> None:
        """The other workers form a group without these. The lowest rank speaks for the run."""
        assert self._put is not None
        self._lost += failures
        left = sorted(self._live)
        self._generation += 1
        self._put(left_key(self._generation), left_text(left))
        notice = f"{what}; the run goes on with {count(len(left), 'worker')}."
        self.notices.append(notice)
        self._tell(Notice(notice))
        if left[0] != self._voice.rank:
            for missed in self._voice.move(left[0]):
                self._tell(missed)

    @property
    def strangers(self) -> int:
        """Connections to workers' and servers' ports from processes without the key of the run."""
        told = sum(standing.beat.strangers for standing in self.standings if standing.beat)
        return told + sum(report.refused for report in read_reports(self._record))

    @property
    def left_with(self) -> int | None:
        """PREEMPTED or JOINED, if all workers that were left have ended with that code. A run that was told to end
        meanwhile does not start again with more workers: it has saved."""
        lost = {failure.rank for failure in self._lost}
        codes = {code for rank, code in self._codes.items() if rank not in lost}
        if not self._saves or codes not in ({PREEMPTED}, {JOINED}):
            return None
        if self.interrupted is None or codes == {PREEMPTED}:
            return codes.pop()
        return PREEMPTED if self.interrupted == signal.SIGTERM else None

    def _unwritten(self) -> Failure | None:
        """A failure, if the worker that speaks for the run at its end has not written the script's files: it had come
        to its own end when it was its turn."""
        rank = self._voice.rank
        beat = self.standings[rank].beat
        if beat is not None and beat.speaks:
            return None
        lost = ", ".join(str(failure.rank) for failure in self._lost)
        cause = f"had ended when worker {lost} was lost: what the script wrote at its end may be missing from its files"
        return Failure(rank=rank, kind=FailureKind.EXITED, at=time.monotonic(), cause=cause, exit_code=1)

    def _said_farewell(self, rank: int) -> bool:
        beat = self.standings[rank].beat
        return beat is not None and beat.last

    def _steps(self) -> int:
        return max((standing.beat.step for standing in self.standings if standing.beat), default=0)

    def _leaves(self, rank: int) -> None:
        """Notes that a worker ended with code 0 and will send no more messages."""
        beat = self.standings[rank].beat
        step = last_step(self._record, rank)  # newer than the last heartbeat if the worker sent no farewell
        steps = max(beat.step if beat else 0, step.step if step else 0)
        self._failures.left[rank] = Left(steps, self._said_farewell(rank))

    def _hear(self, rank: int, message: FromWorker) -> None:
        now = time.monotonic()
        if not 0 <= rank < len(self.standings):
            return
        if isinstance(message, messages.Beat):
            standing = self.standings[rank]
            self._fresh = self._fresh or message.latest is not None
            standing.hear(message, now)
            if (asking := stall.asks(self.standings)) != self._asking:
                self._asking = asking
                self._tell(Asking(asking))
            if rank == 0 and message.checking != self._checking:
                self._checking = message.checking
                self._tell(Checking(message.checking))
            if message.last and self._farewell_by.pop(rank, None) is not None and rank in self._ended_well:
                self._leaves(rank)
        elif isinstance(message, messages.Failed):
            if self._kill_at is None:
                self._fail(raised(rank, message, now))
        elif isinstance(message, messages.Stack):
            self._stacks[rank] = message.text
        elif isinstance(message, messages.Unrecorded):  # of any rank: only one of them may have met the full disk
            stopping.stop_for(RecordError(message.message, advice=message.advice))
        elif rank == self._voice.rank and message.text not in self.notices:
            # All workers run the same lines and send the same notices: rank 0's are enough.
            self.notices.append(message.text)
            if message.idle:
                self.not_in_force[message.mod] = message.text
            self._tell(Notice(message.text, message.mod))

    def _show(self, output: Output) -> None:
        rest = output.data
        try:
            if output.rank not in self._logs:
                self._logs[output.rank] = open_log(self._record, output.rank)
            while rest and not stopping.is_stopped():
                rest = rest[os.write(self._logs[output.rank], rest) :]
        except OSError as error:
            stopping.stop(log_path(self._record, output.rank), error)
        if (shown := self._voice.hear(output)) is not None:
            self._tell(shown)

    def _interrupt(self, number: int) -> None:
        now = time.monotonic()
        self._signals.answered = True
        if self.interrupted is not None:  # a second Ctrl-C kills
            self._signal_all(signal.SIGKILL)
            insisted = now + _SWEEPING_INSISTED
            self._give_up_at = insisted if self._give_up_at is None else min(self._give_up_at, insisted)
            return
        self.interrupted = number
        self._stop(number, _GRACE_SAVING if self._saves and number == signal.SIGTERM else _GRACE_INTERRUPTED)
        if number == signal.SIGINT:
            self._tell(Notice("Stopping every worker. Press Ctrl-C again to kill them."))

    def _stop(self, number: int, grace: float) -> None:
        self._signal_all(number)
        self._kill_at = time.monotonic() + grace
        self._give_up_at = self._kill_at + _SWEEPING

    def _signal_all(self, number: int) -> None:
        for host in self._hosts:
            if not host.swept:
                host.signal(number)

    def _do_without_zygotes(self) -> None:
        """Zygotes no longer answer: kills them and all their child processes."""
        for host in self._hosts:
            if not host.swept:
                host.destroy()
        self._live.clear()
        self._farewell_by.clear()

    def _look_at_the_clock(self, now: float) -> None:
        for rank in [rank for rank, by in self._farewell_by.items() if now > by]:
            del self._farewell_by[rank]
            if self._least is not None and self._live and self._codes.get(rank) == 0 and self._kill_at is None:
                # Whatever its code: the others would wait for it for ever.
                cause = "ended in the middle of the script, with code 0"
                self._fail(Failure(rank=rank, kind=FailureKind.KILLED, at=now, cause=cause, exit_code=1))
            elif rank in self._ended_well:
                self._leaves(rank)
        if self._fresh and now >= self._progress_at:
            self._fresh, self._progress_at = False, now + _TICK
            self._tell(Progress({s.rank: s.beat.latest for s in self.standings if s.beat and s.beat.latest}))
        if self._give_up_at is not None and not self._swept and now >= self._give_up_at:
            self._do_without_zygotes()
        if self._kill_at is not None:
            if self._live and now >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = now + _GRACE_FAILED
            return
        if self._failures and self._live and now >= self._failures.settled_at():
            self.cause = self._failures.cause(self._steps())
            self._stop(signal.SIGTERM, _GRACE_FAILED)
        elif self._live:
            self._inspect(now)
            if self._limit is not None and now - self._begun > self._limit:
                cause = f"was stopped: the run took longer than {self._limit:.0f} s"
                self._failures.add(
                    Failure(rank=min(self._live), kind=FailureKind.LATE, at=now, cause=cause, exit_code=1)
                )

    def _inspect(self, now: float) -> None:
        for standing in self.standings:
            if standing.silence(now) > stall.ASK_AFTER:
                standing.state = self._host_of[standing.rank].state_of(standing.pid)
        found = self._inspector.look(self.standings, now)
        if found is not None:
            self._ask(found, now)
        if self._stalled is not None:
            if self._asked & self._live - self._stacks.keys() and now < self._answers_by:
                return
            self._tell(Stall(stall.report(self._stalled, self.standings, self._stacks, now)))
            self._stalled, self._reported_at = None, now
        over = self._inspector.gives_up(self.standings, now)
        if over is not None and now - self._reported_at > _STALE:
            self._ask(over, now)  # once more, with the stacks of now
        elif over is not None:
            rank = stall.blame(over, now)
            limit = self._inspector.limit(over, self.standings, now)
            default = "" if self._inspector.abort is not None else f": {limit / 60:.0f} minutes by default"
            cause = f"{stall.why(over, rank, now)} (--stall-abort{default})"
            self._failures.add(Failure(rank=rank, kind=FailureKind.STALLED, at=now, cause=cause, exit_code=1))

    def _ask(self, stalled: stall.Stalled, now: float) -> None:
        """Asks all workers for their stacks, for a report."""
        self._stalled, self._answers_by, self._stacks = stalled, now + _ANSWERS, {}
        able = [rank for rank in self._live if not self.standings[rank].is_frozen]
        self._asked = {rank for rank in able if self._host_of[rank].ask_where(rank)}
