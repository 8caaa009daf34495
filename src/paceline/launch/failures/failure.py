"""Decides which worker's failure ended a run, and writes the report about it.

One failure causes more: when a worker is gone, its peers' collectives fail. So the first report is not always the
cause; `Failures` waits up to 2 s for a report that explains more.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from paceline.launch import messages
from paceline.record.folder import last_lines, log_path
from paceline.record.schema import FailureKind
from paceline.wire.store import CANNOT

_SHOWN = 10  # last lines of a log that the report shows
_SEARCHED = 300  # last lines of a log that are searched for known messages


_PARTED = (
    "Worker {left} came to the end of the script after step {step} while worker {rank} was waiting for it: the workers "
    "made different numbers of steps.\n"
    "Look for a branch of the script that depends on time, on unseeded randomness or on the process."
)
_LEFT_OWN_GROUP = "\n\nWorker {left} had come to the end of the script before, after step {step}."
_LEFT = (
    "\nWorker {rank} ended before the last line of the script, without an exception and without sys.exit(). Worker "
    "{waits} was waiting for it.\nLook for os._exit(0), or for a library that ends the process."
)

_NO_ROOM = (
    "\nGloo had no file descriptor left for a connection to this worker, and it takes every connection, also one of a "
    "stranger. Look which processes connect to the ports of the hosts, and raise the limit there: ulimit -n 65536. A "
    "run with --elastic does not use Gloo."
)


_LIKELIEST = tuple(FailureKind)
# Seconds to wait for a likelier cause, or for the other workers to end the same way by themselves.
_SETTLING = {
    FailureKind.KILLED: 0.2,
    FailureKind.STALLED: 0.0,
    FailureKind.RAISED: 1.0,
    FailureKind.EXITED: 2.0,
    FailureKind.LATE: 0.0,
    FailureKind.CONSEQUENCE: 2.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One worker's failure."""

    rank: int
    kind: FailureKind
    at: float
    cause: str
    exit_code: int
    error: str = ""  # the exception's type
    text: str = ""  # a traceback, or a PacelineError's message
    more: str = ""  # more text, shown below the log's last lines


def killed_or_exited(rank: int, code: int, at: float) -> Failure:
    """The failure of a worker that ended with a non-zero code (minus a signal's number) and reported no exception."""
    if code < 0:
        name = signal.Signals(-code).name
        return Failure(
            rank=rank,
            kind=FailureKind.KILLED,
            at=at,
            cause=f"was killed by {name} (signal {-code})",
            exit_code=128 - code,
        )
    return Failure(rank=rank, kind=FailureKind.EXITED, at=at, cause=f"exited with code {code}", exit_code=code)


def raised(rank: int, message: messages.Failed, at: float) -> Failure:
    """The failure of a worker whose script ended with an exception."""
    return Failure(
        rank=rank,
        kind=FailureKind.CONSEQUENCE if message.consequence else FailureKind.RAISED,
        at=at,
        cause=f"raised {message.summary}",
        exit_code=130 if message.name == "KeyboardInterrupt" else 1,
        error=message.name,
        text=message.text,
    )


@dataclass(frozen=True, slots=True)
class Left:
    """A worker that ended with code 0. That is a failure only if other workers wait for that worker."""

    step: int
    said_farewell: bool  # the script reached its end or called sys.exit(0)


class Failures:
    """Collects failures until the cause can be named."""

    def __init__(self, *, own_group: bool = False) -> None:
        """`own_group`: the script distributes itself, and its collectives are not Paceline's to judge."""
        self._own_group = own_group
        self._by_rank: dict[int, Failure] = {}
        self.left: dict[int, Left] = {}  # by rank

    def __bool__(self) -> bool:
        return bool(self._by_rank)

    def add(self, failure: Failure) -> None:
        """An exception's report replaces the bare exit code of the same worker, whichever came first."""
        known = self._by_rank.get(failure.rank)
        if known is None or known.kind is FailureKind.EXITED:
            self._by_rank[failure.rank] = failure

    def cause(self, steps: int) -> Failure:
        """The likeliest cause: by kind, then by time; among workers that failed in the same way, the lowest rank.
        `steps` is the highest number of steps that any worker reported."""
        first = min(self._by_rank.values(), key=lambda failure: (_LIKELIEST.index(failure.kind), failure.at))
        if first.kind is FailureKind.CONSEQUENCE and self.left:
            return self._missed(first, steps)
        alike = (f for f in self._by_rank.values() if (f.kind, f.cause) == (first.kind, first.cause))
        found = min(alike, key=lambda failure: failure.rank)
        said = [f.text for f in self._by_rank.values() if f.kind is FailureKind.CONSEQUENCE and CANNOT in f.text]
        return dataclasses.replace(found, more="".join(f"\n{text}" for text in said[:1])) if said else found

    def _missed(self, waits: Failure, steps: int) -> Failure:
        """No worker was killed and no script raised: the cause is a peer that ended with code 0."""
        hard = [rank for rank, left in self.left.items() if not left.said_farewell]
        rank = min(hard or self.left)
        step = self.left[rank].step
        if not hard and self._own_group:
            return dataclasses.replace(waits, text=waits.text + _LEFT_OWN_GROUP.format(left=rank, step=step))
        if not hard:
            text = _PARTED.format(rank=waits.rank, left=rank, step=step)
            return dataclasses.replace(waits, cause="raised PartedError", error="PartedError", text=text)
        return Failure(
            rank=rank,
            kind=FailureKind.EXITED,
            at=waits.at,
            # The worker ended before it could report its last steps; but no worker makes a step without the others.
            cause=f"exited with code 0 in the middle of its script, after step {max(step, steps)} or later",
            exit_code=1,
            more=_LEFT.format(rank=rank, waits=waits.rank),
        )

    def settled_at(self) -> float:
        """When to stop waiting for a likelier cause."""
        return min(failure.at + _SETTLING[failure.kind] for failure in self._by_rank.values())


def explain(failure: Failure, host: str, record: Path) -> str:
    """Rank, host, cause and last lines, ready to print."""
    who = f"Worker {failure.rank} on {host}"
    log = f"Its log: {log_path(record, failure.rank)}"
    if failure.text:
        return f"{who} failed:\n{failure.text}\n{log}"
    said = f"{who} {failure.cause}."
    if failure.kind is FailureKind.EXITED and failure.rank == 0 and not failure.more:
        return said  # the terminal has already shown what rank 0 wrote before it exited
    lines = "".join(f"\n  {line}" for line in last_lines(record, failure.rank, _SHOWN))
    said += f"\nIts last lines:{lines}" if lines else "\nIt wrote nothing."
    # The messages come before the long stacks that a crash leaves in the log.
    said_before = "".join(last_lines(record, failure.rank, _SEARCHED))
    if failure.exit_code == 128 + signal.SIGABRT and f"accept: {os.strerror(errno.EMFILE)}" in said_before:
        said += _NO_ROOM
    elif failure.exit_code == 128 + signal.SIGABRT and "gloo::EnforceNotMet" in said_before:
        said += (
            "\nThe workers entered different collectives: they no longer run the same lines. Look for a branch of the "
            "script that depends on time, on unseeded randomness or on the process."
        )
    if failure.exit_code == 128 + signal.SIGKILL:
        said += "\nIf you did not kill it, the machine ran out of memory: see dmesg, and try fewer workers."
    if failure.exit_code == 128 + signal.SIGABRT and "thread.cpp" in said_before:  # ZeroMQ aborts instead of raising
        said += "\nThe worker could not start a thread. Raise the limit of processes in this shell: ulimit -u 4096"
    return f"{said}{failure.more}\n{log}"
