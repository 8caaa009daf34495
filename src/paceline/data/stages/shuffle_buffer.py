"""Shuffling a stream: one window of samples is permuted and handed out while the next window fills.

A window is a fixed part of the stream, and its order depends on the seed, the epoch and the window's number. So the
state of a window is where it began and how many of its samples were handed out; to resume, the window is read again. At
most two windows are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.data.planning.nodes import Context, Cursor, Mark, Names, Opener, Settle, Settled, named_by
from paceline.data.planning.order import generator
from paceline.data.stages.repeat import Rounds, RoundsCursor

Named = list[tuple[Any, tuple[Callable[[int], str], int]]]  # samples, each with its name


class Windows:
    """`times` epochs of the stream before it (1: a plain shuffle), in windows of `size` samples. A window never reaches
    into the next epoch, so epochs do not mix."""

    even = False  # workers' windows have different parts of the stream

    def __init__(self, size: int, seed: int, times: int | None = 1) -> None:
        self.size, self.seed = size, seed
        self.rounds = Rounds(times)

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return WindowsCursor(self, up, context, mark)

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        """One worker finishes each window that was begun; then all workers continue after those windows."""
        begun = [mark for mark in marks if mark is not None and "end" not in mark]
        rest = [window for mark in begun for window in mark["rest"]]
        rest += [
            {
                "rank": rank,
                "world": len(marks),
                "number": mark["number"],
                "given": mark["given"],
                "begin": mark["begin"],
            }
            for rank, mark in enumerate(marks)
            if mark is not None and "end" not in mark and mark["given"]
        ]
        ups: list[Mark | None] = []
        for mark in marks:
            if mark is None or "end" in mark:
                ups.append(mark)
            else:
                ups.append(mark["after"] if mark["given"] else mark["begin"])
        number = 1 + max((mark["number"] for mark in begun), default=0)
        settled = self.rounds.settle(ups, below)

        def begin(context: Context) -> Mark:
            up = settled(context)
            mine = rest[context.rank :: context.world]
            return {"rest": mine, "number": number, "given": 0, "begin": up, "after": up}

        return begin


class WindowsCursor(Cursor):
    def __init__(self, node: Windows, up: Opener, context: Context, mark: Mark | None) -> None:
        self._node, self._open, self._context = node, up, context
        mark = mark or {"rest": [], "number": 0, "given": 0, "begin": None}
        self._rest: list[Mark] = [dict(window) for window in mark["rest"]]  # begun by workers that no longer exist
        self._rest_items: Named | None = None
        self._up: RoundsCursor = node.rounds.open(up, context, mark["begin"])
        self._begin, self._number, self._given = self._up.mark(), mark["number"], 0
        self._after = self._begin
        self._items: Named = []
        self._filling: Named = []
        self._names: Names = []  # of the last `take`
        self._filling_begin, self._filling_ended = self._begin, False
        if mark["given"]:
            self._turn_over()
            self._given = mark["given"]

    def take(self, count: int) -> list[Any]:
        found = self._take_named(count)
        self._names = [name for _, name in found]
        return [sample for sample, _ in found]

    def where(self) -> Callable[[int], str]:
        return named_by(self._names)

    def _take_named(self, count: int) -> Named:
        found = self._take_rest(count) if self._rest else []
        while len(found) < count:
            if self._given == len(self._items) and not self._turn_over():
                break
            part = self._items[self._given : self._given + count - len(found)]
            self._given += len(part)
            found += part
            self._fill(len(part))  # the next window fills at the pace at which this one drains
        return found

    def _fill(self, count: int) -> None:
        count = min(count, self._node.size - len(self._filling))
        if count > 0 and not self._filling_ended:
            got, self._filling_ended = self._read(self._up, count)
            self._filling += got

    def _read(self, up: RoundsCursor, count: int) -> tuple[Named, bool]:
        got, ended = up.take_within(count)
        where = up.where()
        return [(sample, (where, number)) for number, sample in enumerate(got)], ended

    def _turn_over(self) -> bool:
        """Starts to hand out the window that was filled. False at the end of the stream."""
        while True:
            self._fill(self._node.size)
            items, ended = self._filling, self._filling_ended
            if items or not ended or not self._up.next_round():
                break
            self._filling_ended, self._filling_begin = False, self._up.mark()
        self._begin = self._filling_begin
        self._items = self._permuted(items, self._context.rank, self._number)
        self._number, self._given = self._number + 1, 0
        if ended:
            self._filling_ended = not self._up.next_round()
        self._filling, self._filling_begin = [], self._up.mark()
        self._after = self._filling_begin
        return bool(items)

    def _permuted(self, items: Named, rank: int, number: int) -> Named:
        order = generator(self._node.seed, *self._context.epoch, rank, number).permutation(len(items))
        return [items[index] for index in order.tolist()]

    def _take_rest(self, count: int) -> Named:
        found: Named = []
        while self._rest and len(found) < count:
            window = self._rest[0]
            if self._rest_items is None:
                self._rest_items = self._read_again(window)
            part = self._rest_items[window["given"] : window["given"] + count - len(found)]
            window["given"] += len(part)
            found += part
            if window["given"] >= len(self._rest_items):
                self._rest, self._rest_items = self._rest[1:], None
        return found

    def _read_again(self, window: Mark) -> Named:
        context = Context(rank=window["rank"], world=window["world"], epoch=self._context.epoch)
        up = self._node.rounds.open(self._open, context, window["begin"])
        items, _ = self._read(up, self._node.size)
        up.close()
        return self._permuted(items, window["rank"], window["number"])

    def mark(self) -> Mark:
        rest = [dict(window) for window in self._rest]
        if not self._given or not self._items:
            # No sample of this window was handed out yet: the mark is where the last window ended.
            begin = self._begin if self._items else self._filling_begin
            return {"rest": rest, "number": self._number_now(), "given": 0, "begin": begin, "after": begin}
        if self._given == len(self._items):
            return {"rest": rest, "number": self._number, "given": 0, "begin": self._after, "after": self._after}
        number = self._number_now()
        return {"rest": rest, "number": number, "given": self._given, "begin": self._begin, "after": self._after}

    def _number_now(self) -> int:
        return self._number - 1 if self._items else self._number

    def close(self, *, wait: bool = True) -> None:
        self._up.close(wait=wait)
