"""Several pipelines as one: in parallel (`zip`), or drawn at random by weight (`mix`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from paceline.data.planning.nodes import Context, Cursor, Mark, Opener, Settle, Settled
from paceline.data.planning.order import generator
from paceline.errors import UsageError

BLOCK = 1024  # draws that are made at once


class Branch(Protocol):
    """The plan of one of the combined pipelines."""

    @property
    def even(self) -> bool: ...
    @property
    def gives_batches(self) -> bool: ...
    def length(self, context: Context, mark: Mark | None = None) -> int | None: ...
    def open(self, context: Context, mark: Mark | None) -> Cursor: ...
    def settle(self, marks: Sequence[Mark | None]) -> Settled: ...


class Zipped:
    """Tuples of one sample of each pipeline, until one pipeline ends."""

    def __init__(self, plans: Sequence[Branch]) -> None:
        self.plans = list(plans)
        self.even = all(plan.even for plan in plans)

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        if context.world > 1 and not self.even:
            raise UsageError(
                "zip() of streams on several workers would pair other samples than on one worker.",
                advice="Zip indexed sources (arrays, lists, datasets), or zip the samples before you pack them.",
            )
        return ZippedCursor([p.open(context, m) for p, m in zip(self.plans, _each(mark, self.plans), strict=True)])

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        return _settle_each(self.plans, marks, {})


class ZippedCursor(Cursor):
    def __init__(self, cursors: list[Cursor]) -> None:
        self._cursors = cursors

    def take(self, count: int) -> list[Any]:
        parts = [list(cursor.take(count)) for cursor in self._cursors]
        return list(zip(*parts, strict=False))

    def mark(self) -> Mark:
        return {"each": [cursor.mark() for cursor in self._cursors]}

    def close(self, *, wait: bool = True) -> None:
        for cursor in self._cursors:
            cursor.close(wait=wait)


class Mixed:
    """Draws each sample from one of the pipelines, by weight, until all have ended: no sample is lost or comes
    twice."""

    even = False

    def __init__(self, plans: Sequence[Branch], weights: Sequence[float], seed: int) -> None:
        self.plans, self.seed = list(plans), seed
        self.weights = np.asarray(weights, np.float64)

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        cursors = [p.open(context, m) for p, m in zip(self.plans, _each(mark, self.plans), strict=True)]
        return MixedCursor(self, context, cursors, mark)

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        drawn = max((mark["drawn"] for mark in marks if mark is not None and "end" not in mark), default=0)
        return _settle_each(self.plans, marks, {"drawn": drawn, "ended": []})


class MixedCursor(Cursor):
    def __init__(self, node: Mixed, context: Context, cursors: list[Cursor], mark: Mark | None) -> None:
        self._node, self._context, self._cursors = node, context, cursors
        self._drawn: int = 0 if mark is None else mark["drawn"]
        self._ended: list[int] = [] if mark is None else list(mark["ended"])
        self._block, self._choices = -1, np.empty(0, np.int64)

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count and len(self._ended) < len(self._cursors):
            number = self._draw()
            got = self._cursors[number].take(1)
            if len(got):
                found += got
                self._drawn += 1
            else:
                self._ended.append(number)
                self._block = -1  # draw again: the weights have changed
        return found

    def _draw(self) -> int:
        block, at = divmod(self._drawn, BLOCK)
        if block != self._block:
            self._block = block
            weights = self._node.weights.copy()
            weights[self._ended] = 0
            draws = generator(self._node.seed, *self._context.epoch, self._context.rank, block).random(BLOCK)
            edges = np.cumsum(weights) / weights.sum()
            last = int(np.flatnonzero(weights)[-1])
            self._choices = np.minimum(np.searchsorted(edges, draws, side="right"), last)
        return int(self._choices[at])

    def mark(self) -> Mark:
        return {
            "each": [cursor.mark() for cursor in self._cursors],
            "drawn": self._drawn,
            "ended": list(self._ended),
        }

    def close(self, *, wait: bool = True) -> None:
        for cursor in self._cursors:
            cursor.close(wait=wait)


def _each(mark: Mark | None, plans: Sequence[Branch]) -> list[Mark | None]:
    return [None] * len(plans) if mark is None else list(mark["each"])


def _settle_each(plans: Sequence[Branch], marks: Sequence[Mark | None], more: Mark) -> Settled:
    settled = [
        plan.settle([mark if mark is None or "end" in mark else mark["each"][number] for mark in marks])
        for number, plan in enumerate(plans)
    ]
    return lambda context: {"each": [one(context) for one in settled], **more}
