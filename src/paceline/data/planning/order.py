"""The order of samples: a function from a position in the whole stream to the index of a sample.

    Shuffled(Whole(60_000), seed=0)        # position 17 of epoch 2 is sample 40_233
    Repeated(Shuffled(…), None)            # … and so on, for ever, each epoch in an order of its own

An order is not read from its beginning: it is asked. So a position is all that has to be kept to go on from there, and
every worker can ask for its own positions alone. Not in here: whose turn a position is (`dealing`), and loading.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from paceline.data.distributed.rng import generator

Indices = npt.NDArray[np.int64]
Epoch = tuple[int, ...]  # which pass, counted by whoever repeats: the outermost first


class Order(Protocol):
    """`length` positions (None: they never end), each of which is an index."""

    @property
    def length(self) -> int | None: ...

    def at(self, positions: Indices, epoch: Epoch) -> Indices: ...


class Whole:
    """All samples, as they lie."""

    def __init__(self, length: int) -> None:
        self.length: int | None = length

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return positions


class Taken:
    """The first ones."""

    def __init__(self, inner: Order, count: int) -> None:
        self.inner = inner
        self.length: int | None = count if inner.length is None else min(count, inner.length)

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(positions, epoch)


class Skipped:
    """All but the first ones."""

    def __init__(self, inner: Order, count: int) -> None:
        self.inner, self.count = inner, count
        self.length: int | None = None if inner.length is None else max(0, inner.length - count)

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(positions + self.count, epoch)


class Shuffled:
    """Each epoch in an order of its own: a permutation of everything, which costs a number a sample."""

    def __init__(self, inner: Order, seed: int) -> None:
        if inner.length is None:
            raise ValueError("what never ends cannot be shuffled as a whole")
        self.inner, self.seed, self.length = inner, seed, inner.length
        self._known: dict[Epoch, Indices] = {}

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(self._permutation(epoch)[positions], epoch)

    def _permutation(self, epoch: Epoch) -> Indices:
        if epoch not in self._known:
            if len(self._known) > 1:  # this epoch's and the next one's, where positions lie in both
                del self._known[min(self._known)]
            self._known[epoch] = generator(self.seed, *epoch).permutation(self.length)
        return self._known[epoch]


class Repeated:
    """So many times, or for ever."""

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
            of_it = rounds == number
            found[of_it] = self.inner.at(positions[of_it] - number * self.period, (*epoch, int(number)))
        return found


class Pieces:
    """Each unit of another order in `parts` parts: position q is part q % parts of unit q // parts."""

    def __init__(self, inner: Order, parts: int) -> None:
        self.inner, self.parts = inner, parts
        self.length: int | None = None if inner.length is None else inner.length * parts

    def at(self, positions: Indices, epoch: Epoch) -> Indices:
        return self.inner.at(positions // self.parts, epoch)
