"""The interface between stages: a cursor returns samples, and its mark is the position to resume from.

Each stage asks the stage before it for exactly the samples it needs. So no sample is lost between stages, and the mark
of the last stage gives the position of all. A prefetched sample (`prefetch`, `parallel_map`) keeps the mark of the
moment when it was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from paceline.data.planning.order import Epoch

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
