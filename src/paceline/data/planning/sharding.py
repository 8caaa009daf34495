"""Sharding: assigns the positions of a stream to workers in turn.

The remaining stream is `todo`, followed by all positions from `next` on. Worker r of N takes the r-th position and
every N-th after it. So the workers' samples of a step are neighbours in the stream for any number of workers, and their
parts differ by at most one sample. If all workers took equally many samples, one number describes the rest; otherwise
(a filter, files of different lengths) `settle` combines the marks of all workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.data.planning.cursor import Context, Mark
from paceline.data.planning.order import Indices


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
