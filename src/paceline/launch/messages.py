"""The messages between the launcher, its zygote and its workers, and their framing.

Launcher and zygote share a socket pair, whose messages can carry file descriptors. Launcher and workers share the
control channel (`control.py`).
"""

from __future__ import annotations

import socket
from typing import Any, TypeAlias

import msgspec

from paceline.record.schema import Step
from paceline.settings import WorkerSettings
from paceline.wire import frames

# --- launcher → zygote


class SpawnOrder(msgspec.Struct, frozen=True):
    """One worker to fork: its settings, and the variables to add to its environment."""

    settings: WorkerSettings
    environment: dict[str, str]


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """Fork these workers, those of one host. The message carries these descriptors: the pipes for the standard output
    and error of the first `speakers` workers, then each worker's end of its link to the store."""

    orders: list[SpawnOrder]
    folder: str  # the working directory of the script
    scratch: str  # the run's temporary folder, removed when the run ends
    speakers: int = 1  # in an elastic run any worker may have to speak for the run


class Signal(msgspec.Struct, tag=True, frozen=True):
    """Send a signal to every worker that still runs."""

    number: int


# --- zygote → launcher


class Ready(msgspec.Struct, tag=True, frozen=True):
    """torch is imported. `threads` is torch's default number of threads."""

    threads: int


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The zygote cannot serve: an import failed, or this torch does not do what Paceline needs."""

    reason: str
    advice: str


class Forked(msgspec.Struct, tag=True, frozen=True):
    """The workers run. `pids` are their process ids in order of rank."""

    pids: list[int]


class Unforked(msgspec.Struct, tag=True, frozen=True):
    """A worker could not be forked. The zygote kills the workers forked before and then sends Swept, as always."""

    rank: int
    number: int  # errno of the failed fork


class Ended(msgspec.Struct, tag=True, frozen=True):
    """A worker ended. `code` is its exit code, or minus the signal's number if a signal killed it, as in subprocess."""

    rank: int
    code: int


class Swept(msgspec.Struct, tag=True, frozen=True):
    """All workers ended, and so did every process that they had started."""


# --- worker → launcher


class Beat(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A heartbeat: the worker's pulse. `waited` is how many seconds the worker has been in the collective `waiting`."""

    step: int
    seam: str
    waiting: str
    waited: float
    collectives: int
    view: str
    latest: Step | None
    passed: int = 0  # number of seams passed
    asking: bool = False  # the main thread waits for standard input
    checking: str = ""  # what Paceline has been checking for long
    evaluated_after: float = 0.0  # seconds of evaluation after the last step, in the last heartbeat
    speaks: bool = False  # what the script writes on this worker goes to its real files
    strangers: int = 0  # connections to the worker's ports from processes without the key of the run
    last: bool = False  # the script has ended; the worker closes the channel


class Said(msgspec.Struct, tag=True, frozen=True):
    """A notice for the person at the terminal."""

    text: str
    mod: str = ""  # the mod that tells of its own settings
    idle: bool = False  # the mod is not in force


class Failed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The script ended with an exception. `consequence`: another worker's failure probably caused the exception."""

    name: str  # the exception's type
    summary: str  # one line: type and message
    text: str  # the text to show: a trimmed traceback, or a PacelineError's message
    consequence: bool


class Unrecorded(msgspec.Struct, tag=True, frozen=True):
    """The worker can no longer write to the record, and goes on without it."""

    message: str
    advice: str


class Stack(msgspec.Struct, tag=True, frozen=True):
    """The answer to Where: the main thread's Python stack, outermost line first."""

    text: str


FromWorkers: TypeAlias = Beat | Said | Failed | Stack | Unrecorded


class FromWorker(msgspec.Struct, frozen=True):
    """The envelope of every message from a worker."""

    rank: int
    message: FromWorkers


# --- launcher → worker


class Where(msgspec.Struct, tag=True, frozen=True):
    """A request for the worker's Python stack."""


def send(connection: socket.socket, message: msgspec.Struct, descriptors: list[int] | None = None) -> None:
    """Sends one message over a socket pair, with its descriptors."""
    frames.send(connection, msgspec.json.encode(message), descriptors)


def receive(connection: socket.socket, types: Any) -> tuple[Any, list[int]]:
    """Waits for one message, whose type is in the union `types`. Raises EOFError when the other side is gone."""
    body, descriptors = frames.receive(connection)
    return msgspec.json.decode(body, type=types), descriptors
