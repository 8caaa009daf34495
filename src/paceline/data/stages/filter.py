"""`filter`: leaves out samples for which a function returns a false value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.data.error_policy import LostSamples
from paceline.data.planning.cursor import Context, Cursor, Mark, Names, Opener, named_by
from paceline.data.planning.job import NOTHING, Step
from paceline.data.planning.nodes import Through


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
