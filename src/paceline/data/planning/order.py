"""The order of samples: a function from a position in the whole stream to the index of a sample.

    Shuffled(Whole(60_000), seed=0)        # position 17 of epoch 2 is sample 40_233
    Repeated(Shuffled(…), None)            # the same for ever, each epoch in its own order

An order answers for any position, without reading the positions before it. So a position is enough to resume, and every
worker asks for its own positions only. Not in here: which worker gets a position (`nodes`), and loading.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Epoch = tuple[int, ...]  # the number of the pass in each `repeat`, the outermost first


class Order(Protocol):
    """`length` positions (None: endless), each with the index of a sample."""

    @property
    def length(self) -> int | None: ...

    def at(self, positions: Indices, epoch: Epoch) -> Indices: ...


class Whole:
    """All samples, in the order of the source."""

    def __init__(self, length: int) -> None:
        self.length: int | None = length

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return positions


class Taken:
    """The first `count` positions of another order."""

    def __init__(self, inner: Order, count: int) -> None:
        self.inner = inner
        self.length: int | None = count if inner.length is None else min(count, inner.length)

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(positions, epoch)


class Skipped:
    """All positions of another order but the first `count`."""

    def __init__(self, inner: Order, count: int) -> None:
        self.inner, self.count = inner, count
        self.length: int | None = None if inner.length is None else max(0, inner.length - count)

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(positions + self.count, epoch)


class Shuffled:
    """Each epoch in its own order: a permutation of all samples, which takes 8 bytes a sample."""

    def __init__(self, inner: Order, seed: int) -> None:
        if inner.length is None:
            raise ValueError("an endless order cannot be shuffled as a whole")
        self.inner, self.seed, self.length = inner, seed, inner.length
        self._known: dict[Epoch, Indices] = {}

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(self._permutation(epoch)[positions], epoch)

    def _permutation(self, epoch: Epoch) -> Indices:
        if epoch not in self._known:
            if len(self._known) > 1:  # a block of positions may span this epoch and the next
                del self._known[min(self._known)]
            self._known[epoch] = generator(self.seed, *epoch).permutation(self.length)
        return self._known[epoch]


class Repeated:
    """Another order `times` times, or for ever (None)."""

    def __init__(self, inner: Order, times: int | None) -> None:
        self.inner, self.period = inner, inner.length
        endless = times is None or self.period is None
        self.length: int | None = None if endless else (times or 0) * (self.period or 0)
        if self.period == 0:
            self.length = 0

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        if not self.period:
            return self.inner.at(positions, (*epoch, 0))
        rounds = positions // self.period
        found = np.empty_like(positions)
        for number in np.unique(rounds):
            in_round = rounds == number
            found[in_round] = self.inner.at(positions[in_round] - number * self.period, (*epoch, int(number)))
        return found


class Pieces:
    """Each unit of another order, cut into `parts` parts: position q is part q % parts of unit q // parts."""

    def __init__(self, inner: Order, parts: int) -> None:
        self.inner, self.parts = inner, parts
        self.length: int | None = None if inner.length is None else inner.length * parts

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(positions // self.parts, epoch)


# -- random generators ------------------------------------------------------------------------------------------------


def generator(seed: int, *numbers: int) -> np.random.Generator:
    """The same stream for the same numbers, on every worker and in every process."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *numbers])))
