"""How stages speak with each other: a cursor is asked for samples, and can say where it stands.

Each stage asks the one before it for exactly what it needs, so nothing is lost between them, and where the last one
stands says where all do. What is read ahead (`ahead`, `jobs`) travels with the mark that was true when it was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from paceline.data.planning.order import Epoch

Mark = dict[str, Any]  # where a cursor stands: numbers, texts, lists and dictionaries of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Whose cursor it is: worker `rank` of `world`, in this pass."""

    rank: int = 0
    world: int = 1
    epoch: Epoch = (0,)
    parted: bool = False  # of each batch only those rows are made that are this worker's,
    place: tuple[int, int] = (0, 1)  # … who is number so of so many that run as one and see the same batches
    ordered: bool = False  # also where the pipeline says that order does not matter: other workers see the same

    def in_round(self, number: int) -> Context:
        return replace(self, epoch=(*self.epoch, number))


class Cursor:
    """What a stage is while it runs. Used by one thread at a time."""

    def take(self, count: int) -> list[Any]:
        """The next ones, `count` of them; fewer only where the stream ends."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the next one lies ready, so that it need not be waited for; False where that is not known."""
        return False

    def mark(self) -> Mark:
        """Where it stands after what was taken. Cheap: asked after every batch."""
        raise NotImplementedError

    def where(self) -> Callable[[int], str]:
        """Names for what was taken last, for errors: the first is number 0."""
        return lambda number: "a sample"

    def close(self, *, wait: bool = True) -> None:
        """Ends its threads and processes, and those before it. May be called twice. Without `wait` they are told to
        end, and no lock is taken: the garbage collector calls it so, in the middle of anything."""


Names = list[tuple[Callable[[int], str], int]]  # of single samples: who names them, and under which number


def named_by(names: Names) -> Callable[[int], str]:
    return lambda number: names[number][0](names[number][1])


Opener = Callable[[Context, Mark | None], Cursor]  # a stage's input, from the start or from a mark
