"""Nodes: what a pipeline is planned as. A node opens a cursor, and knows what many workers' marks mean together.

The first node of a plan makes samples of nothing (`Keys`, `Interleaved`, `Zipped`, `Mixed`); each of the others opens
the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from paceline.data.distributed.sharding import Deal, settle
from paceline.data.execution.job import Where
from paceline.data.planning.cursor import Context, Cursor, Mark, Opener
from paceline.data.planning.order import Indices, Order

END: Mark = {"end": True}  # the mark of a worker that has had all of it
Settled = Callable[[Context], Mark]  # for each worker of another number of them: where it begins
Settle = Callable[[Sequence[Mark | None]], Settled]  # of the node before; None: that worker has not begun

BLOCK = 8192  # indices that are looked up at once


class Node(Protocol):
    """One stage of a plan."""

    @property
    def even(self) -> bool:
        """Whether all workers that took equally many stand at equal marks: then one mark speaks for all."""
        ...

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor: ...

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        """The marks of all workers, put together."""
        ...


class Through:
    """A node that keeps nothing: it stands where the one before it stands."""

    even = True

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        return below(marks)


class Keys:
    """The start of everything that can be asked by index: the indices of this worker's samples."""

    even = True

    def __init__(self, order: Order, name: Callable[[int], str]) -> None:
        self.order, self.name = order, name

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return KeysCursor(self, context, mark)

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        left = settle(fill(marks, {"todo": [], "next": 0, "done": 0}), self.order.length)
        return lambda context: left


def fill(marks: Sequence[Mark | None], start: Mark) -> list[Mark]:
    """Marks of workers that began, with a fitting one for those that did not: they share what they began with."""
    begun = next((mark for mark in marks if mark is not None and "end" not in mark), start)
    return [begun | {"done": 0} if mark is None else begun | mark if "end" in mark else mark for mark in marks]


class KeysCursor(Cursor):
    """Gives an array of indices. Looks them up a block at a time."""

    def __init__(self, node: Keys, context: Context, mark: Mark | None) -> None:
        self._order, self._name, self._epoch = node.order, node.name, context.epoch
        self._deal = Deal(node.order.length, context, mark)
        self._block: Indices = np.empty(0, np.int64)
        self._at, self._done = 0, self._deal.done
        self._last = self._block
        # Of a short epoch that is repeated not hundreds of rounds.
        self._lookahead = min(BLOCK, (getattr(node.order, "period", None) or BLOCK) // context.world + 1)

    def take(self, count: int) -> Indices:  # type: ignore[override]
        if self._at + count > len(self._block):
            positions = self._deal.take(max(count, self._lookahead))
            fresh = self._order.at(positions, self._epoch)
            self._block = np.concatenate([self._block[self._at :], fresh]) if self._at < len(self._block) else fresh
            self._at = 0
        self._last = self._block[self._at : self._at + count]
        self._at += len(self._last)
        # What was asked for, not what there was: so workers that took equally many batches stand at the same mark, also
        # where the last batch of one is smaller.
        self._done += count
        return self._last

    def mark(self) -> Mark:
        return self._deal.mark(self._done)

    def where(self) -> Where:
        last, name = self._last, self._name
        return lambda number: name(int(last[number]))
