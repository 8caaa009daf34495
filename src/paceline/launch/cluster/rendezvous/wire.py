"""The messages of a rendezvous, before and beside those between the controller and its agents (`wire.py`)."""

from __future__ import annotations

import msgspec

# --- member → controller


class Join(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Sent until the controller answers."""

    host: str
    node: int | None  # --node-rank
    workers: int  # if -n is not given
    asked: dict[str, str]  # what must be the same on all hosts


class Here(msgspec.Struct, tag=True, frozen=True):
    """A heartbeat."""


class Left(msgspec.Struct, tag=True, frozen=True):
    """The agent of this member has ended."""

    why: str


class FromMember(msgspec.Struct, frozen=True):
    """Around every message from a member. `me` stays the same when a connection is made anew."""

    token: str
    me: str
    message: Join | Here | Left


# --- controller → member


class Waiting(msgspec.Struct, tag=True, frozen=True):
    """A heartbeat: the member has joined."""


class Refused(msgspec.Struct, tag=True, frozen=True):
    message: str
    advice: str


class Start(msgspec.Struct, tag=True, frozen=True):
    """Start an agent with these variables, and `boot` on its standard input."""

    variables: dict[str, str]
    boot: bytes


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the agent."""

    patience: float


class Over(msgspec.Struct, tag=True, frozen=True):
    """The run has ended with this exit code. `message` says why, if it has failed."""

    code: int
    message: str


ToMember = Waiting | Refused | Start | Stop | Over
