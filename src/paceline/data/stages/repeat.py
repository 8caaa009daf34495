"""`repeat`: the stages before it, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.data.planning.nodes import Context, Cursor, Mark, Names, Opener, Settle, Settled, named_by


class Rounds:
    """The stream before it, `times` times (None: for ever), each time as its own epoch."""

    even = False  # a worker with a smaller share reaches the next round earlier

    def __init__(self, times: int | None) -> None:
        self.times = times

    def open(self, up: Opener, context: Context, mark: Mark | None) -> RoundsCursor:
        return RoundsCursor(up, context, self.times, mark)

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        """Workers may be in different rounds: a later round then begins with the samples that the faster workers
        left."""
        rounds = [0 if mark is None else self._stands(mark) for mark in marks]
        standing = [number for number in rounds if number is not None]
        if not standing:
            return lambda context: END_OF_ROUNDS
        lowest, highest = min(standing), max(standing)
        if len(standing) < len(marks) and self.times is not None:
            highest = self.times - 1  # one worker has finished all rounds
        by_round: dict[int, Settled] = {}
        for number in range(lowest, highest + 1):
            in_round: list[Mark | None] = []
            for mark, stands in zip(marks, rounds, strict=True):
                if stands is None or stands > number:
                    in_round.append({"end": True})
                elif mark is None:
                    in_round.append(None)
                else:
                    in_round.append(mark["up"] if stands == number else mark["coming"].get(str(number)))
            by_round[number] = below(in_round)

        def begin(context: Context) -> Mark:
            coming = {str(number): by_round[number](context) for number in range(lowest + 1, highest + 1)}
            return {"round": lowest, "up": by_round[lowest](context), "coming": coming}

        return begin

    def _stands(self, mark: Mark) -> int | None:
        """The round that a worker is in; None if the worker has finished all rounds."""
        ended = "end" in mark or mark["round"] is None or mark["round"] == self.times
        return None if ended else int(mark["round"])


BARREN = 100  # empty rounds in a row, after which the stream counts as empty
END_OF_ROUNDS: Mark = {"round": None, "up": None, "coming": {}}


class RoundsCursor(Cursor):
    """`take` continues into the next round; `take_within` stops at the end of a round."""

    def __init__(self, up: Opener, context: Context, times: int | None, mark: Mark | None) -> None:
        mark = mark or {"round": 0, "up": None, "coming": {}}
        self._open, self._context, self._times = up, context, times
        self.round, self._coming = mark["round"], dict(mark["coming"])
        self._ended = self.round is None or self.round == times
        self._up = None if self._ended else up(context.in_round(self.round), mark["up"])
        self._barren = 0  # empty rounds in a row: a single round may have no samples for this worker
        self._names: Names = []

    def take_within(self, count: int) -> tuple[list[Any], bool]:
        """Up to `count` samples of this round, and whether the round has ended."""
        if self._up is None:
            return [], True
        got = self._up.take(count)
        if len(got):
            self._barren = -1
            where = self._up.where()
            self._names = [(where, number) for number in range(len(got))]
        return got, len(got) < count

    def next_round(self) -> bool:
        """Begins the next round; False if there is none."""
        if self._up is None:
            return False
        self._up.close()
        self.round += 1
        self._barren += 1
        if self.round == self._times or self._barren > BARREN:
            self._ended, self._up = True, None
            return False
        mark = self._coming.pop(str(self.round), None)
        self._up = self._open(self._context.in_round(self.round), mark)
        return True

    def take(self, count: int) -> list[Any]:
        got, ended = self.take_within(count)
        names = self._names
        while ended and len(got) < count and self.next_round():
            more, ended = self.take_within(count - len(got))
            got = [*got, *more]
            names = [*names, *self._names]
        self._names = names
        return got

    def where(self) -> Callable[[int], str]:
        return named_by(self._names)

    def mark(self) -> Mark:
        up = self._up.mark() if self._up is not None else None
        return {"round": self.round, "up": up, "coming": self._coming}

    def close(self, *, wait: bool = True) -> None:
        if self._up is not None:
            self._up.close(wait=wait)
