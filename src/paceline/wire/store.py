"""The key-value store of a run: the launcher serves it, and each worker reaches it over a socket that it inherits.

The store has no address: the launcher makes each worker's socket before the fork, so no other process can connect.
Workers exchange addresses, ids and descriptors (of shared memory, of processes) through the store. The worker's side is
in link.py: it imports torch, which the launcher must not. On several hosts, each host's agent serves its workers, keeps
their descriptors, and passes all other requests on to the controller (`launch/cluster/line.py`).
"""

from __future__ import annotations

import os
import select
import socket
import threading
from types import TracebackType
from typing import Protocol, Self

import msgspec

from paceline import threads
from paceline.wire import frames

CANNOT = "which the others cannot do again without it"  # said where a worker is lost and the run must end
Value = bytes | int | None


# --- requests of a worker, and the answer


class Set(msgspec.Struct, tag=True, frozen=True):
    """Store this value, and the descriptors that come with the message."""

    key: str
    value: bytes


class Get(msgspec.Struct, tag=True, frozen=True):
    """Get the value of a key, with its descriptors; None if the key is missing. Never waits: the worker polls."""

    key: str


class Add(msgspec.Struct, tag=True, frozen=True):
    """Add to a counter, which starts at 0. Returns the new value."""

    key: str
    amount: int


class CompareSet(msgspec.Struct, tag=True, frozen=True):
    """Set the key if its value is `expected`, or if the key is missing and `expected` is empty. Returns the value
    afterwards."""

    key: str
    expected: bytes
    desired: bytes


class Has(msgspec.Struct, tag=True, frozen=True):
    """Check whether all these keys have values."""

    keys: list[str]


class Delete(msgspec.Struct, tag=True, frozen=True):
    """Delete a key. Returns whether the key existed."""

    key: str


class Count(msgspec.Struct, tag=True, frozen=True):
    """Count the keys below a prefix."""

    prefix: str


Ask = Set | Get | Add | CompareSet | Has | Delete | Count


class Told(msgspec.Struct, frozen=True):
    """The answer to a request, or why there is none."""

    value: bytes | int | None
    problem: str = ""


# --- the launcher's side


class Values:
    """The keys of a store, their values, and the descriptors that came with them."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, list[int]]] = {}

    def do(self, ask: Ask, came: list[int]) -> tuple[Value, list[int]]:
        """Answers a request. Keeps the descriptors that came; those in the answer stay open here."""
        if isinstance(ask, Set):
            self._forget(ask.key)
            self._values[ask.key] = ask.value, came
            return None, []
        if isinstance(ask, Get):
            return self._values.get(ask.key, (None, []))
        if isinstance(ask, Add):
            return self._add(ask), []
        if isinstance(ask, CompareSet):
            return self._compare_set(ask), []
        if isinstance(ask, Has):
            return int(all(key in self._values for key in ask.keys)), []
        if isinstance(ask, Delete):
            return self._forget(ask.key), []
        return sum(key.startswith(ask.prefix) for key in self._values), []

    def close(self) -> None:
        for key in list(self._values):
            self._forget(key)

    def _add(self, ask: Add) -> int:
        found = self._values.get(ask.key, (b"0", []))[0]
        try:
            total = int(found) + ask.amount
        except ValueError:
            raise ValueError(f"{ask.amount} cannot be added to the key {ask.key!r}: it holds {found!r}") from None
        self._values[ask.key] = str(total).encode(), []
        return total

    def _compare_set(self, ask: CompareSet) -> bytes:
        found = self._values.get(ask.key)
        if found is None and ask.expected:
            return ask.expected  # like torch's stores
        if found is None or found[0] == ask.expected:
            self._values[ask.key] = ask.desired, []
            return ask.desired
        return found[0]

    def _forget(self, key: str) -> int:
        value = self._values.pop(key, None)
        for descriptor in value[1] if value is not None else ():
            os.close(descriptor)
        return int(value is not None)


class Answers(Protocol):
    """What answers workers' requests, from one thread. Raises OSError or EOFError if it is over, and any other error
    for a request that cannot be answered."""

    def do(self, ask: Ask, came: list[int]) -> tuple[Value, list[int]]: ...

    def close(self) -> None: ...


class LinkServer:
    """Serves `workers` sockets from a separate thread, so that workers need not wait when the launcher blocks on a
    terminal that does not read. `ends[r]` is for worker r: pass it on, then close it in the launcher with `let_go`."""

    def __init__(self, workers: int, answers: Answers | None = None) -> None:
        pairs = [socket.socketpair() for _ in range(workers)]
        self.ends = [its for _, its in pairs]
        self._ours = {ours.fileno(): ours for ours, _ in pairs}
        self._answers = Values() if answers is None else answers
        self._decoder = msgspec.msgpack.Decoder(Ask)
        self._over, self._end = os.pipe2(os.O_CLOEXEC)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threads.start("store of the launcher", self.serve)

    def put(self, key: str, value: bytes) -> None:
        """Sets a new key, from the launcher's own thread."""
        self._answers.do(Set(key, value), [])

    def let_go(self) -> None:
        """Closes the launcher's copies of `ends`, once the workers have theirs."""
        for end in self.ends:
            end.close()

    def serve(self) -> None:
        """Answers requests until `close`, or until every worker is gone."""
        poll = select.poll()
        for each in (*self._ours, self._over):
            poll.register(each, select.POLLIN)
        gone = 0
        while gone < len(self._ours):
            for fd, _ in poll.poll():
                if fd == self._over:
                    return
                if not self._answer(self._ours[fd]):
                    poll.unregister(fd)
                    gone += 1

    def close(self) -> None:
        """Ends the thread and closes every descriptor."""
        os.write(self._end, b"\0")  # a fork of this process may keep its copy open
        if self._thread is not None:
            self._thread.join()
        os.close(self._end)
        os.close(self._over)
        self.let_go()
        for ours in self._ours.values():
            ours.close()
        self._answers.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, worker: socket.socket) -> bool:
        """Answers one request; returns whether the worker is still there."""
        try:
            body, came = frames.receive(worker)
            try:
                value, descriptors = self._answers.do(self._decoder.decode(body), came)
                answer = msgspec.msgpack.encode(Told(value))
            except (OSError, EOFError):
                return False
            except Exception as error:  # of this request: the worker that asked raises it
                answer, descriptors = msgspec.msgpack.encode(refusal(error)), []
            frames.send(worker, answer, descriptors)
        except (OSError, EOFError):
            return False
        return True


def refusal(error: Exception) -> Told:
    """The answer to a request that cannot be answered."""
    return Told(None, str(error) or type(error).__name__)


# --- in an elastic run: who is left, written by the launcher


ROOM = "room"  # set once there are fewer workers than the run may have


def left_key(generation: int) -> str:
    """The key for the members of this generation. The first group is generation 0, and is not written."""
    return f"left/{generation}"


def left_text(ranks: list[int]) -> bytes:
    """The members, by the ranks that they began with."""
    return ",".join(map(str, ranks)).encode()


def ranks_in(text: bytes) -> list[int]:
    return [int(rank) for rank in text.decode().split(",")]


def passed_key(generation: int, rank: int) -> str:
    """The key for the number of collectives of this generation that have ended on a worker that makes no more."""
    return f"passed/{generation}/{rank}"


def settled_key(generation: int) -> str:
    """The key for the number of collectives of this generation that count."""
    return f"settled/{generation}"
