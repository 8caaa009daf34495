"""What workers and servers say to each other, as msgpack: decoding yields data and never runs code.

A message is followed by raw numbers where worker and server share no memory: an empty frame lies between the two. Every
request has a number, which its answer repeats. A request may arrive twice (a worker asks again after a server's
restart), and is then done once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.strategies.server.optimizers import OptimizerSpec
from paceline.strategies.server.partition import Share, TensorSpec
from paceline.wire.channel import frames_of

ALL_ANSWERED = -1  # a sequence number: nothing was pushed yet


class Request(msgspec.Struct, frozen=True, array_like=True):
    """`worker` is a number that a worker draws when it starts: another process never has the same."""

    request: int
    worker: int


class Hello(Request, tag="hello", frozen=True):
    """A worker joins, or is back after a connection was lost. Answer: Welcome."""

    rank: int
    process: int
    host: str


class Open(Request, tag="open", frozen=True):
    """The parameters of one optimizer ("space"), and this server's share of them. The first worker's values are the
    initial ones, and follow as numbers if there is no `memory`. Answer: Numbers."""

    space: int
    tensors: tuple[TensorSpec, ...]
    share: Share
    optimizer: OptimizerSpec
    memory: tuple[int, int, int] | None  # process, descriptor, bytes: parameters first, gradients after them
    gradients: int  # where gradients begin in the memory
    clock: int | None  # steps done; None: a new worker
    seen: int  # the newest version seen


class Push(Request, tag="push", frozen=True):
    """Gradients of one step, followed by their numbers if there is no shared memory. Answer: Numbers."""

    space: int
    sequence: int  # of this worker's pushes: a push is applied once
    clock: int  # steps that the worker has done
    version: int  # of the parameters that the gradients belong to
    weight: float  # samples; 0: no gradient, but the step is done
    missing: tuple[int, ...]  # tensors without a gradient
    options: tuple[dict[str, Any], ...]
    norm: float = 0.0  # of all gradients of the step; 0: not told


class Pull(Request, tag="pull", frozen=True):
    """The newest parameters. Answer: Numbers."""

    space: int


class State(Request, tag="state", frozen=True):
    """The optimizer's state. Answer: Told, followed by raw numbers."""

    space: int


class Load(Request, tag="load", frozen=True):
    """An optimizer's state that the script has loaded: of each piece, as `State` describes it; numbers follow. Without
    `force` it is taken only before the first update. Answer: Told."""

    space: int
    state: tuple[dict[str, Any], ...]
    force: bool


class Assign(Request, tag="assign", frozen=True):
    """Parameters that the script itself has changed; numbers follow if there is no shared memory. Answer: Told."""

    space: int


class Bye(Request, tag="bye", frozen=True):
    """The worker has ended, or will not push again. Answer: Told."""


class Beat(Request, tag="beat", frozen=True):
    """The worker is alive. Answer: Pong."""


Ask = Hello | Open | Push | Pull | State | Load | Assign | Bye | Beat


class Answer(msgspec.Struct, frozen=True, array_like=True):
    request: int


class Welcome(Answer, tag="welcome", frozen=True):
    server: int
    start: int  # how often this server was started
    notices: tuple[str, ...]  # for people: what was lost in a restart


class Numbers(Answer, tag="numbers", frozen=True):
    """Parameters: in the worker's memory if `mapped`, else in the next frame."""

    version: int
    clock: int  # steps that the worker has done, as the server counts them
    staleness: int  # of the update that this answers; −1: none was made
    mapped: bool


class Told(Answer, tag="told", frozen=True):
    value: bytes | int | None


class Pong(Answer, tag="pong", frozen=True):
    start: int


class Unknown(Answer, tag="unknown", frozen=True):
    """The server does not know the worker, or the space: say Hello and Open again, then ask again."""


class Refused(Answer, tag="refused", frozen=True):
    reason: str


Say = Welcome | Numbers | Told | Pong | Unknown | Refused

encode = msgspec.msgpack.Encoder().encode
decode_ask = msgspec.msgpack.Decoder(Ask).decode
decode_answer = msgspec.msgpack.Decoder(Say).decode


def framed(message: Ask | Answer, numbers: Any = None) -> list[Any]:
    """The frames to send."""
    body = frames_of(encode(message))
    return body if numbers is None else [*body, b"", *frames_of(numbers)]


def parted(frames: Sequence[memoryview]) -> tuple[memoryview, memoryview | None]:
    """The message and the numbers that have come in these frames. One frame of numbers is not copied."""
    ends = [number for number, frame in enumerate(frames) if not frame.nbytes]
    end = ends[0] if ends else len(frames)
    rest = frames[end + 1 :]
    return _whole(frames[:end]), (_whole(rest) if ends else None)


def _whole(frames: Sequence[memoryview]) -> memoryview:
    return frames[0] if len(frames) == 1 else memoryview(bytearray().join(frames))
