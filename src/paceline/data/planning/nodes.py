"""Nodes: the parts of a plan. A node opens a cursor, and combines the marks of several workers. A cursor is the
interface between stages: it returns samples, and its mark is the position to resume from.

The first node of a plan is a source (`Keys`, `Interleaved`, `Zipped`, `Mixed`); each other node opens the node before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from paceline.data.planning.job import Where
from paceline.data.planning.order import Epoch, Indices, Order

# -- cursors ----------------------------------------------------------------------------------------------------------
# Each stage asks the stage before it for exactly the samples it needs. So no sample is lost between stages, and the
# mark of the last stage gives the position of all. A prefetched sample (`prefetch`, `parallel_map`) keeps the mark of
# the moment when it was read.


Mark = dict[str, Any]  # the position of a cursor: numbers, strings, and lists and dictionaries of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Which worker a cursor belongs to (`rank` of `world`), and in which epoch."""

    rank: int = 0
    world: int = 1
    epoch: Epoch = (0,)
    parted: bool = False  # this worker makes only its own rows of each batch
    place: tuple[int, int] = (0, 1)  # rank and number of the workers that must see the same batches
    ordered: bool = False  # keep the order even with deterministic=False, because other workers see the same batches

    def in_round(self, number: int) -> Context:
        return replace(self, epoch=(*self.epoch, number))


class Cursor:
    """A running stage. Used by one thread at a time."""

    def take(self, count: int) -> list[Any]:
        """The next `count` samples; fewer only at the end of the stream."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the next sample is ready without waiting; False if that is not known."""
        return False

    def mark(self) -> Mark:
        """The position after the samples that were taken. Must be cheap: it is asked for after every batch."""
        raise NotImplementedError

    def where(self) -> Callable[[int], str]:
        """A function from a number to the name of a sample of the last `take`, for errors; the first has number 0."""
        return lambda number: "a sample"

    def close(self, *, wait: bool = True) -> None:
        """Ends the threads and processes of this stage and of the stages before it. May be called twice. Without `wait`
        they are told to end, and no lock is taken, because the garbage collector may call `close` at any point."""


Names = list[tuple[Callable[[int], str], int]]  # for each sample: the function that names it, and its number there


def named_by(names: Names) -> Callable[[int], str]:
    return lambda number: names[number][0](names[number][1])


Opener = Callable[[Context, Mark | None], Cursor]  # opens the stage before, from the start or from a mark


# -- nodes ------------------------------------------------------------------------------------------------------------


END: Mark = {"end": True}  # the mark of a worker that has finished the epoch
Settled = Callable[[Context], Mark]  # where each worker begins after resuming on another number of workers
Settle = Callable[[Sequence[Mark | None]], Settled]  # `settle` of the node before; None: that worker has not begun

BLOCK = 8192  # indices that are looked up at once


class Node(Protocol):
    """One stage of a plan."""

    @property
    def even(self) -> bool:
        """Whether workers that took equally many batches have equal marks, so that one mark is enough to resume all."""
        ...

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor: ...

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        """Combines the marks of all workers, to resume on another number of workers."""
        ...


class Through:
    """A node without a state of its own: its mark is the mark of the node before it."""

    even = True

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        return below(marks)


class Keys:
    """The first node of an indexed source: the indices of this worker's samples."""

    even = True

    def __init__(self, order: Order, name: Callable[[int], str]) -> None:
        self.order, self.name = order, name

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return KeysCursor(self, context, mark)

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        left = settle(fill(marks, {"todo": [], "next": 0, "done": 0}), self.order.length)
        return lambda context: left


def fill(marks: Sequence[Mark | None], start: Mark) -> list[Mark]:
    """Marks of workers that began, with a matching mark for each worker that did not: all share the starting point."""
    begun = next((mark for mark in marks if mark is not None and "end" not in mark), start)
    return [begun | {"done": 0} if mark is None else begun | mark if "end" in mark else mark for mark in marks]


class KeysCursor(Cursor):
    """Returns arrays of indices. Looks them up one block at a time."""

    def __init__(self, node: Keys, context: Context, mark: Mark | None) -> None:
        self._order, self._name, self._epoch = node.order, node.name, context.epoch
        self._deal = Deal(node.order.length, context, mark)
        self._block: Indices = np.empty(0, np.int64)
        self._at, self._done = 0, self._deal.done
        self._last = self._block
        # No block spans hundreds of rounds of a short epoch that is repeated.
        self._lookahead = min(BLOCK, (getattr(node.order, "period", None) or BLOCK) // context.world + 1)

    def take(self, count: int) -> Indices:  # type: ignore[override]
        if self._at + count > len(self._block):
            positions = self._deal.take(max(count, self._lookahead))
            fresh = self._order.at(positions, self._epoch)
            self._block = np.concatenate([self._block[self._at :], fresh]) if self._at < len(self._block) else fresh
            self._at = 0
        self._last = self._block[self._at : self._at + count]
        self._at += len(self._last)
        # Counts the indices asked for, not those that were left: so workers that took equally many batches have the
        # same mark, even if the last batch of one worker is smaller.
        self._done += count
        return self._last

    def mark(self) -> Mark:
        return self._deal.mark(self._done)

    def where(self) -> Where:
        last, name = self._last, self._name
        return lambda number: name(int(last[number]))


# -- sharding: positions of a stream, to workers in turn --------------------------------------------------------------
# The remaining stream is `todo`, followed by all positions from `next` on. Worker r of N takes the r-th position and
# every N-th after it. So the workers' samples of a step are neighbours in the stream for any number of workers, and
# their parts differ by at most one sample. If all workers took equally many samples, one number describes the rest;
# otherwise (a filter, files of different lengths) `settle` combines the marks of all workers.


class Deal:
    """One worker's share of the positions below `length` (None: endless)."""

    def __init__(self, length: int | None, context: Context, mark: Mark | None = None) -> None:
        mark = mark or {"todo": [], "next": 0, "done": 0}
        self.length, self.rank, self.world = length, context.rank, context.world
        self.todo, self.next, self.done = np.asarray(mark["todo"], np.int64), int(mark["next"]), int(mark["done"])

    def take(self, count: int) -> Indices:
        """The worker's next positions; fewer than `count` only at the end."""
        turns = self.rank + self.world * np.arange(self.done, self.done + count, dtype=np.int64)
        early, late = turns[turns < len(self.todo)], turns[turns >= len(self.todo)] + (self.next - len(self.todo))
        if self.length is not None:
            late = late[late < self.length]
        found = np.concatenate([self.todo[early], late]) if len(early) else late
        self.done += len(found)
        return found

    def left(self) -> int | None:
        """The number of positions that this worker will still get; None: endless."""
        if self.length is None:
            return None
        whole = len(self.todo) + max(0, self.length - self.next)
        return max(0, -(-(whole - self.rank) // self.world) - self.done)

    def mark(self, done: int | None = None) -> Mark:
        return {"todo": self.todo.tolist(), "next": self.next, "done": self.done if done is None else done}


def settle(marks: Sequence[Mark], length: int | None) -> Mark:
    """Combines the marks of all workers, in the order of ranks, into one mark of the remaining stream, which any number
    of workers can resume from."""
    world, first = len(marks), marks[0]
    todo, following = np.asarray(first["todo"], np.int64), int(first["next"])
    whole = None if length is None else len(todo) + max(0, length - following)
    done = np.asarray([_done(mark, rank, world, whole) for rank, mark in enumerate(marks)], np.int64)
    low, high = int(done.min()) * world, int(done.max()) * world  # all turns before `low` are done, none from `high` on
    turns = np.arange(low, high, dtype=np.int64)
    turns = turns[turns // world >= done[turns % world]]
    late = turns[turns >= len(todo)] - len(todo) + following
    if length is not None:
        late = late[late < length]
    left = np.concatenate([todo[turns[turns < len(todo)]], todo[high:], late])
    return {"todo": left.tolist(), "next": following + max(0, high - len(todo)), "done": 0}


def _done(mark: Mark, rank: int, world: int, whole: int | None) -> int:
    if "end" not in mark:
        return int(mark["done"])
    return 0 if whole is None else max(0, -(-(whole - rank) // world))
