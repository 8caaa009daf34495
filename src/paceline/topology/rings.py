"""The best ring through a few devices: first the widest slowest link, then the most bandwidth in all.

A ring is what an all-reduce of large tensors goes round on, and it is as fast as its slowest link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Rates: TypeAlias = Sequence[Sequence[float]]  # GB/s between each two; symmetric

EXACT = 10  # devices; up to here every ring is weighed against every other


@dataclass(frozen=True, slots=True)
class Ring:
    """`order` begins with the first device and comes back to it. Two devices have one link, one has none."""

    order: tuple[int, ...]
    slowest: float
    total: float

    @property
    def worth(self) -> tuple[float, float]:
        return self.slowest, self.total


def best_ring(rates: Rates) -> Ring:
    """Through all devices of the matrix: the best there is up to ten of them, a good one above."""
    count = len(rates)
    if count < 3:
        return _ring(rates, tuple(range(count)))
    quick = _improved(rates, _greedy(rates))
    if quick.worth >= upper_bound(rates) or count > EXACT:
        return quick
    return _exact(rates)


def upper_bound(rates: Rates) -> tuple[float, float]:
    """No ring can be worth more: each device gives it two links, at best its two widest."""
    count = len(rates)
    if count < 3:
        return _ring(rates, tuple(range(count))).worth
    widest = [sorted((rates[a][b] for b in range(count) if b != a), reverse=True)[:2] for a in range(count)]
    return min(pair[1] for pair in widest), round(sum(map(sum, widest)) / 2, 6)


def links_of(order: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs that a ring in this order joins."""
    if len(order) < 3:
        return [(order[0], order[1])] if len(order) == 2 else []
    return list(zip(order, [*order[1:], order[0]], strict=True))


def _ring(rates: Rates, order: tuple[int, ...]) -> Ring:
    carried = [rates[a][b] for a, b in links_of(order)]
    return Ring(order, min(carried, default=0.0), round(sum(carried), 6))


def _greedy(rates: Rates) -> Ring:
    """From each device in turn, always on to the best joined that is left."""
    count = len(rates)
    found = []
    for first in range(count):
        order, left = [first], set(range(count)) - {first}
        while left:
            order.append(max(left, key=lambda other: (rates[order[-1]][other], -other)))
            left.remove(order[-1])
        found.append(_ring(rates, _from_zero(tuple(order))))
    return max(found, key=lambda ring: ring.worth)


def _improved(rates: Rates, ring: Ring) -> Ring:
    """Turns stretches of the ring round for as long as that helps."""
    better = True
    while better:
        better = False
        count = len(ring.order)
        for start in range(1, count - 1):
            for end in range(start + 1, count):
                order = ring.order[:start] + ring.order[start : end + 1][::-1] + ring.order[end + 1 :]
                tried = _ring(rates, order)
                if tried.worth > ring.worth:
                    ring, better = tried, True
    return ring


def _exact(rates: Rates) -> Ring:
    """Held and Karp's way, once for each width of link, widest first: the first width of which a ring can be
    made is the widest slowest link, and among such rings the one that carries most is kept."""
    widths = sorted({rates[a][b] for a in range(len(rates)) for b in range(a)}, reverse=True)
    for width in widths:
        order = _fullest(rates, width)
        if order is not None:
            return _ring(rates, order)
    raise AssertionError("every pair has a width, so the narrowest allows every ring")


def _fullest(rates: Rates, width: float) -> tuple[int, ...] | None:
    """The ring that carries most without a link narrower than `width`."""
    count = len(rates)
    # From device 0 through the devices of a set (bits, without 0) to its last: most carried, and who came before.
    most: list[dict[int, tuple[float, int]]] = [{} for _ in range(1 << (count - 1))]
    for last in range(1, count):
        if rates[0][last] >= width:
            most[1 << (last - 1)][last] = (rates[0][last], 0)
    for members in range(1, 1 << (count - 1)):
        for last, (carried, _) in most[members].items():
            for after in range(1, count):
                bit = 1 << (after - 1)
                if members & bit or rates[last][after] < width:
                    continue
                further = carried + rates[last][after]
                kept = most[members | bit].get(after)
                if kept is None or further > kept[0]:
                    most[members | bit][after] = (further, last)
    members = (1 << (count - 1)) - 1
    ends = {last: carried + rates[last][0] for last, (carried, _) in most[members].items() if rates[last][0] >= width}
    if not ends:
        return None
    last = max(ends, key=lambda end: (ends[end], -end))
    order = []
    while last:
        order.append(last)
        members, last = members & ~(1 << (last - 1)), most[members][last][1]
    return _from_zero((0, *order))


def _from_zero(order: tuple[int, ...]) -> tuple[int, ...]:
    """The same ring, beginning at device 0 and going on to the lower of its neighbours."""
    start = order.index(0)
    order = order[start:] + order[:start]
    return order if len(order) < 3 or order[1] < order[-1] else (order[0], *order[:0:-1])
