"""The workers that a server serves, and whether they live.

On the same host the kernel tells when a worker's process ends. A worker on another host, or a stopped one, is gone when
its heartbeats have been missing for a while. A worker that was taken for gone may come back.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from paceline.strategies.server import messages as say


@dataclass
class Member:
    rank: int
    heard: float  # when
    process: int | None  # a process descriptor (pidfd), on the same host


class Members:
    """`on_gone(worker, text)` is called for each worker that ends; the text is for the log."""

    def __init__(self, poller: Any, on_gone: Callable[[int, str], None]) -> None:
        self._poller, self._on_gone = poller, on_gone
        self._members: dict[int, Member] = {}
        self._expected: set[int] = set()  # that will join: those of the server's last life, or any (negative numbers)
        self._until = 0.0
        self._founders: set[int] = set()
        self.first = 0  # the rank of the first worker

    def expect(self, workers: set[int], until: float) -> None:
        """These workers will join: rounds wait for them until then. A negative number stands for any worker."""
        self._expected, self._until = set(workers), until
        self._founders |= workers

    @property
    def founders(self) -> set[int]:
        """The workers that started the run, and those still expected: every optimizer's first steps wait for them."""
        return self._founders & (self._members.keys() | self._expected)

    def join(self, hello: say.Hello, *, same_host: bool) -> int | None:
        """A worker comes, or comes back. Returns the number of the expected worker whose place it takes."""
        if not self._members:
            self.first = hello.rank
        known = self._members.get(hello.worker)
        if known is not None:
            known.heard = time.monotonic()
            return None
        process = None
        if same_host:
            with contextlib.suppress(OSError):
                process = os.pidfd_open(hello.process)
                self._poller.register(process, zmq.POLLIN)
        self._members[hello.worker] = Member(hello.rank, time.monotonic(), process)
        if hello.worker in self._expected:
            self._expected.discard(hello.worker)
            return None
        anybody = next((place for place in self._expected if place < 0), None)
        if anybody is not None:
            self._expected.discard(anybody)
            self._founders.discard(anybody)
            self._founders.add(hello.worker)
        return anybody

    def hear(self, worker: int) -> bool:
        """Notes a message of a worker. False if the worker is not known."""
        member = self._members.get(worker)
        if member is None:
            return False
        member.heard = time.monotonic()
        return True

    def __bool__(self) -> bool:
        return bool(self._members)

    def rank(self, worker: int) -> int:
        member = self._members.get(worker)
        return -1 if member is None else member.rank

    def is_here(self, worker: int) -> bool:
        """Whether a worker runs on the same host."""
        member = self._members.get(worker)
        return member is not None and member.process is not None

    def end_of(self, process: int) -> None:
        """The kernel reports the end of a process."""
        for worker, member in list(self._members.items()):
            if member.process == process:
                self.drop(worker, f"worker {member.rank} has ended; the others go on")

    def drop(self, worker: int, text: str) -> None:
        """A worker is gone."""
        member = self._members.pop(worker, None)
        if member is not None and member.process is not None:
            self._poller.unregister(member.process)
            os.close(member.process)
        self._expected.discard(worker)
        self._on_gone(worker, text)

    def drop_silent(self, now: float, silence: float) -> None:
        """Drops workers without a heartbeat, and expected ones that have not come."""
        for worker, member in list(self._members.items()):
            if now - member.heard > silence:
                self.drop(worker, f"worker {member.rank} has been silent for {silence:.0f} s; the others go on")
        if self._expected and now > self._until:
            for worker in list(self._expected):
                self.drop(worker, "a worker did not join in time; the others go on")
