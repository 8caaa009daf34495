"""One optimizer's parameters on one server: applies workers' pushes, and answers when their pace allows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from paceline.comm.memory.region import Region
from paceline.strategies.server import messages as say
from paceline.strategies.server.shard import Shard, Views
from paceline.strategies.server.shard_file import from_raw, raw
from paceline.strategies.server.stale.correction import Correction, Kind


class MalformedError(Exception):
    """A message that a worker of this run would not send."""


@dataclass
class Seat:
    """A worker's memory; None where worker and server share none."""

    parameters: torch.Tensor | None
    gradients: Views | None


@dataclass
class Waiting:
    """A worker that waits for its answer."""

    peer: bytes
    request: int
    staleness: int


@dataclass
class Pushed:
    """A push of an unfinished round."""

    ask: say.Push
    gradients: Views


class Space:
    """Called from the server's loop only. `send(peer, answer, numbers)` sends an answer."""

    def __init__(
        self,
        shard: Shard,
        pace: Pace[Pushed],
        *,
        correction: Kind,
        send: Callable[[bytes, say.Answer, bytes | None], None],
        on_update: Callable[[int], None],
        rank_of: Callable[[int], int],
    ) -> None:
        self.shard, self.pace = shard, pace
        self.applied: dict[int, int] = {}  # worker → sequence number of its last push
        self.seats: dict[int, Seat] = {}
        self.is_loaded = False  # a state was taken up
        self.counts: Counter[str] = Counter()  # duplicates, dropped
        self._send, self._on_update, self._rank_of = send, on_update, rank_of
        self._correction = Correction(correction, shard.spec.path)
        self._waiting: dict[int, Waiting] = {}

    def fits(self, ask: say.Open) -> bool:
        """Whether a worker means the same parameters."""
        shard = self.shard
        groups = shard.spec.path, shard.spec.groups
        return (ask.tensors, ask.share) == (shard.tensors, shard.share) and groups == (
            ask.optimizer.path,
            ask.optimizer.groups,
        )

    def seat(self, ask: say.Open, memory: Region | None) -> None:
        """Gives a worker its place. With shared memory, its parameters are written and its gradients read there."""
        if memory is None:
            self.seats[ask.worker] = Seat(None, None)
            return
        share = self.shard.share
        begin, end, gradients = share.begin, share.end, ask.gradients
        if not 0 <= begin <= end <= gradients <= gradients + end <= memory.size:
            raise MalformedError("a share outside of the worker's memory")
        self.seats[ask.worker] = Seat(
            memory.bytes[begin:end], self.shard.views(memory.bytes[gradients + begin : gradients + end])
        )

    def push(self, peer: bytes, ask: say.Push, frame: memoryview | None) -> None:
        """Applies a push, at once or in its round, and answers when the worker may go on."""
        worker, seat = ask.worker, self.seats[ask.worker]
        if len(ask.options) != len(self.shard.spec.groups):
            raise MalformedError("options of another number of groups")
        self._waiting[worker] = Waiting(peer, ask.request, -1)
        if ask.sequence <= self.applied.get(worker, say.ALL_ANSWERED):
            self.counts["duplicates"] += 1
        elif not self.pace.synchronous:
            if ask.weight:
                self._apply(ask, self._gradients(seat, frame))
            self._note(worker, ask.sequence)
            self.pace.step(worker)
        elif self.pace.is_late(worker, ask.clock):
            self.counts["dropped"] += bool(ask.weight)
            self._note(worker, ask.sequence)
        else:
            known = self.pace.pushes.get(worker)
            if known is None or known[1].ask.sequence != ask.sequence:  # else it was asked again
                self.pace.put(worker, ask.clock, Pushed(ask, self._gradients(seat, frame)) if ask.weight else None)
                if not ask.weight:
                    self._note(worker, ask.sequence)
        self.go_on()

    def pull(self, peer: bytes, worker: int, request: int) -> None:
        """Answers at once with the newest parameters."""
        self._answer(worker, Waiting(peer, request, -1))

    def load(self, described: Sequence[dict[str, Any]], numbers: memoryview) -> None:
        """Takes an optimizer's state up."""
        tensors, offset = [], 0
        for entry in described:
            for value in entry.values():
                if isinstance(value, dict):
                    tensors.append(from_raw(numbers, value["dtype"], value["shape"], offset))
                    offset += len(raw(tensors[-1]))
        if offset != len(numbers):
            raise MalformedError("a state of another size")
        self.shard.set_state(described, tensors, self.pace.clocks)
        self.is_loaded = True

    def assign(self, worker: int, frame: memoryview | None) -> None:
        """Takes a worker's parameters up, which its script has changed."""
        given = self.seats[worker].parameters
        if frame is not None and len(frame) == self.shard.memory.numel():
            raw(self.shard.memory)[:] = frame
        elif given is not None:
            self.shard.memory.copy_(given)
        else:
            raise MalformedError("parameters of another size")

    def leave(self, worker: int) -> None:
        """A worker has ended."""
        self.pace.leave(worker)
        self.shard.momenta.leave(worker)
        self.seats.pop(worker, None)
        self._waiting.pop(worker, None)
        self.go_on()

    def go_on(self) -> None:
        """Finishes rounds, and answers the workers that may go on."""
        if self.pace.synchronous:
            self.pace.complete(self._update)
        for worker, waiting in list(self._waiting.items()):
            if self.pace.has_answer(worker):
                del self._waiting[worker]
                self._answer(worker, waiting)

    def _apply(self, ask: say.Push, gradients: Views) -> None:
        staleness = max(0, self.shard.version - ask.version)
        plan = self._correction.plan(ask.options, staleness, ask.norm)
        own = ask.worker if plan.own else None
        self.shard.apply(gradients, frozenset(ask.missing), ask.options, plan.rate, scale=plan.scale, own=own)
        self._waiting[ask.worker].staleness = staleness
        self._on_update(staleness)

    def _update(self, round_: list[tuple[int, Pushed]]) -> None:
        """One update by the mean of a round's gradients, in the order of ranks: sums do not depend on arrival."""
        round_.sort(key=lambda entry: (self._rank_of(entry[0]), entry[0]))
        given = [(push.gradients, frozenset(push.ask.missing), push.ask.weight) for _, push in round_]
        gradients, missing = self.shard.mean(given)
        self.shard.apply(gradients, missing, round_[0][1].ask.options)
        for worker, push in round_:
            self._note(worker, push.ask.sequence)
            if worker in self._waiting:
                self._waiting[worker].staleness = 0
        self._on_update(0)

    def _note(self, worker: int, sequence: int) -> None:
        self.applied[worker] = max(sequence, self.applied.get(worker, say.ALL_ANSWERED))

    def _gradients(self, seat: Seat, frame: memoryview | None) -> Views:
        if frame is None:
            if seat.gradients is None:
                raise MalformedError("a push without numbers")
            return seat.gradients
        if len(frame) != self.shard.memory.numel():
            raise MalformedError("a push of another size")
        if not len(frame):
            return []
        return self.shard.views(torch.frombuffer(frame, dtype=torch.uint8))

    def _answer(self, worker: int, waiting: Waiting) -> None:
        seat, numbers = self.seats[worker], None
        if seat.parameters is not None:
            seat.parameters.copy_(self.shard.memory)
        else:
            numbers = bytes(raw(self.shard.memory))  # a copy: the next update must not change what is being sent
        clock = self.pace.clocks.get(worker, 0)
        answer = say.Numbers(waiting.request, self.shard.version, clock, waiting.staleness, numbers is None)
        self._send(waiting.peer, answer, numbers)


# -- pace: which workers may start the next step ----------------------------------------------------------------------
# Only counting; no sockets, no numbers.
#
# A worker's clock is the number of its steps. With a bound K, a worker that is more than K steps ahead of the slowest
# live worker waits. With K = 0 the server is synchronous: a round is complete when all live workers with the lowest
# clock have pushed; with backup workers, when all but the slowest few have.


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
