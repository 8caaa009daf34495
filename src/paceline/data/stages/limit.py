"""`take` and `skip`: a number of samples from the start; `filter`: those for which a function says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.data.error_policy import LostSamples
from paceline.data.planning.job import NOTHING, Step
from paceline.data.planning.nodes import Context, Cursor, Mark, Names, Opener, Settle, Settled, Through, named_by


def share(count: int, context: Context) -> int:
    """This worker's part of `count` samples."""
    return count // context.world + (context.rank < count % context.world)


class Limited:
    """Leaves out `skip` samples and lets `take` pass (None: all), counted over all workers."""

    even = False  # shares differ if the number of workers does not divide the counts

    def __init__(self, skip: int, take: int | None) -> None:
        self.skip, self.limit = skip, take

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        if mark is None:
            limit = None if self.limit is None else share(self.limit, context)
            mark = {"skip": share(self.skip, context), "left": limit, "up": None}
        return LimitedCursor(up(context, mark["up"]), mark["skip"], mark["left"])

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        world = len(marks)
        known = [
            (mark["skip"], mark["left"])
            if mark is not None and "end" not in mark
            else (0, 0 if self.limit is not None else None)
            if mark is not None
            else (
                share(self.skip, Context(rank=rank, world=world)),
                None if self.limit is None else share(self.limit, Context(rank=rank, world=world)),
            )
            for rank, mark in enumerate(marks)
        ]
        skip = sum(skip for skip, _ in known)
        left = None if self.limit is None else sum(left or 0 for _, left in known)
        ups = below([mark if mark is None or "end" in mark else mark["up"] for mark in marks])
        return lambda context: {
            "skip": share(skip, context),
            "left": None if left is None else share(left, context),
            "up": ups(context),
        }


class LimitedCursor(Cursor):
    def __init__(self, up: Cursor, skip: int, left: int | None) -> None:
        self._up, self._skip, self._left = up, skip, left
        self.where, self.close = up.where, up.close  # type: ignore[method-assign]

    def take(self, count: int) -> list[Any]:
        while self._skip and self._left != 0:
            dropped = len(self._up.take(min(self._skip, 1024)))
            if not dropped:
                break
            self._skip -= dropped
        if self._left is not None:
            count = min(count, self._left)
        got = self._up.take(count) if count else []
        if self._left is not None:
            self._left -= len(got)
        return got

    def mark(self) -> Mark:
        return {"skip": self._skip, "left": self._left, "up": self._up.mark()}


# -- filter -----------------------------------------------------------------------------------------------------------


class Filtered(Through):
    """The samples for which the function returns a true value. Each worker advances at its own pace."""

    even = False

    def __init__(self, step: Step, losses: LostSamples) -> None:
        self.step, self.losses = step, losses

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return FilteredCursor(self, up(context, mark))


class FilteredCursor(Cursor):
    def __init__(self, node: Filtered, up: Cursor) -> None:
        self._step, self._losses, self._up = node.step, node.losses, up
        self._names: Names = []
        self.mark, self.close = up.mark, up.close  # type: ignore[method-assign]

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        self._names = []
        while len(found) < count:
            asked = count - len(found)
            got = self._up.take(asked)
            where = self._up.where()
            for number, sample in enumerate(got):
                verdict = self._step(sample, where, number, self._losses)
                if verdict is not NOTHING and verdict:
                    found.append(sample)
                    self._names.append((where, number))
            if len(got) < asked:
                break
        return found

    def where(self) -> Callable[[int], str]:
        return named_by(self._names)
