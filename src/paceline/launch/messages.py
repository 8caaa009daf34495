"""What the launcher, its zygote and its workers say to each other: the messages, and how they are framed.

Launcher and zygote share a socket pair (file descriptors travel with a message); launcher and workers share
the control channel (`control.py`), whose messages carry the run's token.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from paceline.comm.link import frames
from paceline.record.schema import Step
from paceline.settings import WorkerSettings

# --- launcher → zygote


class Order(msgspec.Struct, frozen=True):
    """One worker to fork: its settings, and what to add to its environment."""

    settings: WorkerSettings
    environment: dict[str, str]


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """Fork these workers. Comes with the pipes that take rank 0's standard output and error, then with each worker's
    end of its link to the launcher's store."""

    orders: list[Order]
    folder: str  # where the script is to run
    scratch: str  # a temporary folder of the run, gone when it is over


class Signal(msgspec.Struct, tag=True, frozen=True):
    """Send a signal to every worker that still runs."""

    number: int


# --- zygote → launcher


class Ready(msgspec.Struct, tag=True, frozen=True):
    """torch is imported. `threads` is what torch would use by itself."""

    threads: int


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The zygote cannot serve: something could not be imported."""

    reason: str


class Forked(msgspec.Struct, tag=True, frozen=True):
    """The workers run; process ids in order of rank."""

    pids: list[int]


class Unforked(msgspec.Struct, tag=True, frozen=True):
    """A worker could not be forked: the error's number. Those before it are killed, and swept up as always."""

    rank: int
    number: int


class Ended(msgspec.Struct, tag=True, frozen=True):
    """A worker ended: `code` as subprocess has it, minus the signal's number where a signal killed it."""

    rank: int
    code: int


class Swept(msgspec.Struct, tag=True, frozen=True):
    """All workers ended, and so did everything they had started."""


# --- worker → launcher


class Beat(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A heartbeat: the worker's pulse. `waited` is how long it has been in the collective `waiting`."""

    step: int
    seam: str
    waiting: str
    waited: float
    collectives: int
    view: str
    latest: Step | None
    passed: int = 0  # seams
    last: bool = False  # the script is over, and so is this channel


class Said(msgspec.Struct, tag=True, frozen=True):
    """Something for the person at the terminal."""

    text: str
    mod: str = ""  # the mod that tells of its own settings


class Failed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The script ended with an exception. `consequence`: it looks like another worker's fault."""

    name: str  # the exception's type
    summary: str  # one line: type and message
    text: str  # what to show: a trimmed traceback, or a PacelineError's message
    consequence: bool


class Stack(msgspec.Struct, tag=True, frozen=True):
    """The answer to Where: the main thread's Python stack, outermost line first."""

    text: str


class FromWorker(msgspec.Struct, frozen=True):
    """The envelope of all that a worker says."""

    token: str
    rank: int
    message: Beat | Said | Failed | Stack


# --- launcher → worker


class Where(msgspec.Struct, tag=True, frozen=True):
    """Where are you?"""


class ToWorker(msgspec.Struct, frozen=True):
    """The envelope of all that the launcher says to a worker."""

    token: str
    message: Where


def send(connection: socket.socket, message: msgspec.Struct, descriptors: list[int] | None = None) -> None:
    """Sends one message over a socket pair, with its descriptors."""
    frames.send(connection, msgspec.json.encode(message), descriptors)


def receive(connection: socket.socket, types: Any) -> tuple[Any, list[int]]:
    """Waits for one message, one of the union `types`. EOFError when the other side is gone."""
    body, descriptors = frames.receive(connection)
    return msgspec.json.decode(body, type=types), descriptors
