"""Nodes: the parts of a plan. A node opens a cursor, and combines the marks of several workers.

The first node of a plan is a source (`Keys`, `Interleaved`, `Zipped`, `Mixed`); each other node opens the node before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from paceline.data.planning.cursor import Context, Cursor, Mark, Opener
from paceline.data.planning.job import Where
from paceline.data.planning.order import Indices, Order
from paceline.data.planning.sharding import Deal, settle

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
