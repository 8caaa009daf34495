"""The stall inspector: reports which workers wait, are missing or silent, and where each one stands.

It works on heartbeats, and on the kernel's process state for a worker that sends no heartbeats. A worker is

- **waiting** in a collective, or for the other workers to connect;
- **silent** when the launcher got no heartbeat for 5 s, or none since the worker's start: the worker is frozen (stopped
  by a signal), blocked in the kernel, or its Python does not answer. Its last heartbeat no longer counts;
- **quiet** when it runs without a step, a seam or a collective. That is no fault while no other worker waits: a long
  evaluation, a compilation or a download looks the same;
- **asking** when it waits for standard input (`input()`, a debugger's prompt): as long as one does, nothing is a stall.

A worker that other workers wait for is missing: it is in no collective, is silent, or has ended. If all workers wait in
different collectives, they parted ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline.launch import messages
from paceline.launch.processes import is_frozen

ABORT = 1800.0  # seconds that a run is stalled before it is ended, unless another limit was typed
# Before the first step, a worker that answers and that others wait for has so many times as long: a first compilation
# or a download looks like a hang.
AT_START = 4.0
_SILENT = 5.0  # seconds without a heartbeat after which a worker is called silent
# Seconds without a heartbeat after which the launcher reads the worker's state from the kernel. Heartbeats come every
# 0.5 s: the last one of a frozen worker must not count for longer.
ASK_AFTER = 0.75

_STATES = {
    "D": "is blocked in the kernel: it waits for a disk or a device",
    "R": "runs, but its Python does not answer: it is in a long call outside Python that keeps the interpreter's lock",
    "S": "sleeps, and its Python does not answer: it waits in a call outside Python that keeps the interpreter's lock",
}


@dataclass(slots=True)
class WorkerStanding:
    """What the launcher knows about one worker. Times are on the launcher's clock, in seconds."""

    rank: int
    beat: messages.Beat | None = None
    heard: float = 0.0  # when the last heartbeat came
    ended: bool = False
    pid: int = 0
    born: float = 0.0  # when the worker was forked; 0: not yet
    state: str = ""  # the kernel's letter for the process state; empty: not read
    moved: float = 0.0  # when a heartbeat last showed progress
    host: str = "localhost"

    def hear(self, beat: messages.Beat, now: float) -> None:
        """Stores a heartbeat."""
        known = self.beat
        if known is None or _place(known) != _place(beat):
            self.moved = now
        self.beat, self.heard, self.state = beat, now, ""

    def silence(self, now: float) -> float:
        """Seconds since the last heartbeat, or since the fork if there was none; 0 before the fork and after the
        end."""
        since = self.heard if self.beat is not None else self.born
        return now - since if since and not self.ended else 0.0

    @property
    def is_frozen(self) -> bool:
        return not self.ended and is_frozen(self.state)

    def is_silent(self, now: float) -> bool:
        return self.is_frozen or self.silence(now) > _SILENT

    def waited(self, now: float) -> float:
        """Seconds that the worker has been in its present collective; 0 if it is in none, or does not answer."""
        if self.ended or self.beat is None or not self.beat.waiting or self.is_silent(now):
            return 0.0
        return self.beat.waited + (now - self.heard)

    def is_quiet(self, now: float, limit: float) -> bool:
        """Whether the worker answers, is in no collective, and has shown no progress for `limit` seconds."""
        if self.beat is None or self.beat.waiting or self.is_silent(now):
            return False
        return now - self.moved >= limit


@dataclass(frozen=True, slots=True)
class Stalled:
    """A stall at one moment. If no worker waits and all are only quiet, the stall is no failure."""

    longest: float
    waiting: list[WorkerStanding]
    missing: list[WorkerStanding]
    quiet: bool = False


@dataclass(slots=True)
class Inspector:
    """Reports each stall once, and again only after the workers went on and then stalled anew. Reports workers that are
    only quiet once per run."""

    warning: float  # seconds; 0: never
    abort: float | None  # seconds; 0: never; None: `ABORT`
    tells_quiet: bool = True  # False for a program that is only started and watched: its workers pass no seams
    _asked: float = field(default=float("-inf"), init=False)  # when a worker was last seen to wait for its user
    _reported: set[tuple[int, int]] = field(default_factory=set, init=False)  # (rank, collectives entered)

    def limit(self, stalled: Stalled, standings: list[WorkerStanding], now: float) -> float:
        """Seconds after which this stall ends the run; 0: never."""
        if self.abort is not None:
            return self.abort
        answering = [one for one in stalled.missing if not one.ended and not one.is_silent(now)]
        began = any(one.beat.step for one in standings if one.beat is not None)
        return ABORT * AT_START if answering and not began else ABORT

    def excuse(self, now: float) -> None:
        """The launcher itself was stopped until now: whoever waits may have waited for it."""
        self._asked = now

    def look(self, standings: list[WorkerStanding], now: float) -> Stalled | None:
        """A stall that has not been reported yet."""
        if asks(standings):
            self._asked = now
            return None
        stalled = self._without_asking(_stalled(standings, now), now)
        limits = [limit for limit in (self.warning, ABORT if self.abort is None else self.abort) if limit]
        if stalled is None or not limits or stalled.longest < min(limits):
            self._reported.clear()
            return self._quiet(standings, now) if stalled is None else None
        # The number of collectives tells two stalls apart even if the workers went on too briefly for `look` to see it.
        still = [*stalled.waiting, *(standing for standing in stalled.missing if standing.is_silent(now))]
        keys = {(standing.rank, standing.beat.collectives if standing.beat else -1) for standing in still}
        known, self._reported = bool(keys & self._reported), keys
        return None if known else stalled

    def gives_up(self, standings: list[WorkerStanding], now: float) -> Stalled | None:
        """A stall that ends the run: a worker has been waiting or silent for `limit` seconds."""
        stalled = None if asks(standings) else self._without_asking(_stalled(standings, now), now)
        limit = self.limit(stalled, standings, now) if stalled is not None else 0.0
        return stalled if stalled is not None and limit and stalled.longest >= limit else None

    def _without_asking(self, stalled: Stalled | None, now: float) -> Stalled | None:
        """The workers that wait for one that was at a prompt have waited since its user went on."""
        if stalled is None or now - self._asked >= stalled.longest:
            return stalled
        return replace(stalled, longest=now - self._asked)

    def _quiet(self, standings: list[WorkerStanding], now: float) -> Stalled | None:
        live = [standing for standing in standings if not standing.ended]
        if now - self._asked < self.warning:
            return None
        if not (self.warning and self.tells_quiet and live) or not all(s.is_quiet(now, self.warning) for s in live):
            return None
        self.tells_quiet = False
        return Stalled(min(now - standing.moved for standing in live), [], live, quiet=True)


def report(stalled: Stalled, standings: list[WorkerStanding], stacks: dict[int, str], now: float) -> str:
    """The text of the report."""
    lines = [_headline(stalled)]
    lines += [f"  {_stand(standing, now)}" for standing in stalled.waiting]
    if stalled.missing and stalled.waiting:
        lines.append(f"Missing: {_ranks(stalled.missing)}.")
    lines += [f"  {_stand(standing, now)}" for standing in stalled.missing]
    if not stalled.missing:
        lines.append(_where_nobody_is_missing(stalled.waiting))
    frozen = [standing for standing in stalled.missing if standing.is_frozen]
    if frozen:
        pids = " ".join(str(standing.pid) for standing in frozen)
        lines.append(f"To continue {_ranks(frozen)}, type: kill -CONT {pids}")
    lines.append("Where each worker stands (main thread, innermost line last):")
    for standing in standings:
        if not standing.ended:
            lines += [f"worker {standing.rank}:", stacks.get(standing.rank, f"  {_no_answer(standing)}")]
    return "\n".join(lines)


def blame(stalled: Stalled, now: float) -> int:
    """The rank to name as the cause: a frozen or silent one, else the first missing one, else the one with the fewest
    collectives."""
    if stalled.missing:
        return min(stalled.missing, key=lambda s: (not s.is_frozen, not s.is_silent(now), s.rank)).rank
    return min(stalled.waiting, key=lambda s: (s.beat.collectives if s.beat else 0, s.rank)).rank


def why(stalled: Stalled, rank: int, now: float) -> str:
    """A clause about that worker: what is wrong with it, and which ranks it kept waiting."""
    standing = next((one for one in stalled.missing if one.rank == rank), None)
    wrong = _wrong(standing, now) if standing is not None and standing.is_silent(now) else ""
    if not stalled.waiting:
        return wrong
    kept = f"kept rank {', '.join(str(one.rank) for one in stalled.waiting)} waiting for {stalled.longest:.0f} s"
    return f"{wrong}, and {kept}" if wrong else kept


def asks(standings: list[WorkerStanding]) -> bool:
    """Whether a worker waits for its user at a prompt (`input()`, a debugger): then the others wait, too, and rightly
    so."""
    return any(one.beat is not None and one.beat.asking and not one.ended for one in standings)


def _stalled(standings: list[WorkerStanding], now: float) -> Stalled | None:
    waiting = [standing for standing in standings if standing.waited(now) > 0]
    silent = [standing for standing in standings if standing.is_silent(now)]
    if not waiting and not silent:
        return None
    missing = [standing for standing in standings if standing not in waiting] if waiting else silent
    longest = max([*(one.waited(now) for one in waiting), *(one.silence(now) for one in silent)])
    return Stalled(longest, waiting, missing)


def _place(beat: messages.Beat) -> tuple[int, int, int, str]:
    return beat.step, beat.passed, beat.collectives, beat.waiting


def _headline(stalled: Stalled) -> str:
    if stalled.quiet:
        return (
            f"No step for {stalled.longest:.0f} s, and no worker waits for another. Long work outside the training "
            "loop (an evaluation, a compilation, a download) looks like this, and so does an endless loop. This notice "
            "appears once and does not end the run."
        )
    if not stalled.waiting:
        return f"Stalled: {_ranks(stalled.missing)} did not answer for {stalled.longest:.1f} s."
    return f"Stalled: {_ranks(stalled.waiting)} waited {stalled.longest:.1f} s for other workers."


def _where_nobody_is_missing(waiting: list[WorkerStanding]) -> str:
    if len({(one.beat.collectives, one.beat.waiting) for one in waiting if one.beat}) > 1:
        return "No worker is missing: the workers parted ways and wait in different collectives."
    return (
        "No worker is missing: all wait in the same collective, so their messages to each other do not arrive. Check "
        "the network between the hosts, and the GPUs."
    )


def _ranks(standings: list[WorkerStanding]) -> str:
    ranks = ", ".join(str(standing.rank) for standing in standings)
    return f"worker{'s' if len(standings) > 1 else ''} {ranks}"


def _stand(standing: WorkerStanding, now: float) -> str:
    name, beat = f"worker {standing.rank} on {standing.host}", standing.beat
    if standing.ended:
        return f"{name}: its script has ended" + (f", after step {beat.step}" if beat else "")
    if beat is None and not standing.is_silent(now):
        return f"{name}: has not been heard of yet"
    place = f"step {beat.step}, after seam {beat.seam}, {beat.collectives} collectives entered" if beat else ""
    if standing.is_silent(now):
        last = f"; at its last heartbeat: {place}" if beat else ""
        return f"{name}: {_wrong(standing, now)}{last}"
    if beat is not None and beat.waiting:
        return f"{name}: waits in {beat.waiting} for {standing.waited(now):.1f} s; {place}"
    return f"{name}: in no collective; {place}"


def _wrong(standing: WorkerStanding, now: float) -> str:
    """A clause that says what is wrong with a silent worker."""
    unheard = f"no heartbeat for {standing.silence(now):.0f} s"
    if standing.beat is None:
        unheard = f"not heard of since it was started {standing.silence(now):.0f} s ago"
    if standing.is_frozen:
        return f"is frozen (stopped by a signal; {unheard})"
    return f"{_STATES.get(standing.state, 'does not answer')} ({unheard})"


def _no_answer(standing: WorkerStanding) -> str:
    if standing.is_frozen:
        return f"cannot answer: it is frozen. To continue it, type: kill -CONT {standing.pid}"
    return "did not answer: its Python is blocked, or the worker has not started yet"
