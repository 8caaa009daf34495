"""Bounded staleness: which workers may start the next step. Only counting; no sockets, no numbers.

A worker's clock is the number of its steps. With a bound K, a worker that is more than K steps ahead of the slowest
live worker waits. With K = 0 the server is synchronous: a round is complete when all live workers with the lowest clock
have pushed; with backup workers, when all but the slowest few have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pace(Generic[T]):
    """The clocks of the live workers. Workers that are still expected have clocks, too."""

    def __init__(self, bound: float, *, workers: int = 0, backup: int = 0) -> None:
        """`workers` are started, `backup` of which a synchronous round need not wait for."""
        self.bound = bound
        self._needed = workers - backup if backup else 0
        self.clocks: dict[int, int] = {}
        self.pushes: dict[int, tuple[int, T]] = {}  # of unfinished rounds: worker → clock, push
        self._done: dict[int, int] = {}  # workers without a gradient in a round: worker → clock
        self._latest = 0

    @property
    def synchronous(self) -> bool:
        return self.bound == 0

    @property
    def slowest(self) -> int:
        """The lowest clock."""
        return min(self.clocks.values(), default=self._latest)

    def join(self, worker: int, clock: int | None = None) -> int:
        """A worker comes, or comes back with its clock. A new one starts where the slowest is. Returns the clock."""
        self.clocks[worker] = self.slowest if clock is None else clock
        self._latest = max(self._latest, self.clocks[worker])
        return self.clocks[worker]

    def leave(self, worker: int) -> None:
        """A worker has ended. Its last push counts; the round no longer waits for it."""
        self._latest = max(self._latest, self.clocks.pop(worker, 0))
        self._done.pop(worker, None)

    def may_go(self, worker: int) -> bool:
        """Whether a worker may begin its next step."""
        return self.clocks.get(worker, self.slowest) - self.slowest <= self.bound

    def has_answer(self, worker: int) -> bool:
        """Whether a worker that has pushed may go on: its round is over, or its lead is within the bound."""
        if self.synchronous:
            return worker not in self.pushes and worker not in self._done
        return self.may_go(worker)

    def step(self, worker: int) -> None:
        """A worker's step is done."""
        self.clocks[worker] = self.clocks.get(worker, self.slowest) + 1
        self._latest = max(self._latest, self.clocks[worker])

    # -- rounds of a synchronous server -------------------------------------------------------------------------------

    def is_late(self, worker: int, clock: int) -> bool:
        """Whether the round of a push is over: it went on without this worker."""
        return clock < self.clocks.get(worker, clock)

    def put(self, worker: int, clock: int, push: T | None) -> None:
        """A worker's push for a round; None: it has no gradient in this round."""
        if push is None:
            self._done[worker] = clock
        else:
            self.pushes[worker] = clock, push

    def complete(self, make_update: Callable[[list[tuple[int, T]]], None]) -> bool:
        """Finishes rounds as far as possible: `make_update` gets each round's pushes. Returns whether any was."""
        any_was = False
        while self.pushes or self._done:
            clock = min([*self.clocks.values(), *(clock for clock, _ in self.pushes.values())], default=self._latest)
            inside = [worker for worker, at in self.clocks.items() if at == clock]
            missing = [worker for worker in inside if not self._has(worker, clock)]
            slack = max(0, len(self.clocks) - self._needed) if self._needed else 0
            here = [(worker, push) for worker, (at, push) in self.pushes.items() if at == clock]
            if len(missing) > (slack if here else 0) or not (here or inside):
                break
            for worker, _ in here:
                del self.pushes[worker]
            for worker in inside:
                self._done.pop(worker, None)
                self.step(worker)
            if here:
                make_update(here)
            any_was = True
        return any_was

    def _has(self, worker: int, clock: int) -> bool:
        return self._done.get(worker) == clock or (worker in self.pushes and self.pushes[worker][0] == clock)
