"""Finds the best ring through a few devices: first by its slowest link, then by its total bandwidth.

An all-reduce of large tensors runs on a ring and is as fast as the slowest link of the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Rates: TypeAlias = Sequence[Sequence[float]]  # GB/s between each pair of devices; symmetric

EXACT = 10  # devices: up to this number the search is exact


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring: from the last device of `order` back to the first. A ring of two devices has one link, of one device
    none. Rates are in GB/s."""

    order: tuple[int, ...]
    slowest: float
    total: float

    @property
    def worth(self) -> tuple[float, float]:
        return self.slowest, self.total


def best_ring(rates: Rates) -> Ring:
    """A ring through all devices of the matrix: the best ring for up to ten devices, a good one for more."""
    count = len(rates)
    if count < 3:
        return _ring(rates, tuple(range(count)))
    quick = _two_opt(rates, _greedy(rates))
    if quick.worth >= upper_bound(rates) or count > EXACT:
        return quick
    return _exact(rates)


def upper_bound(rates: Rates) -> tuple[float, float]:
    """An upper bound for `Ring.worth`: each device contributes two links, at best its two fastest."""
    count = len(rates)
    if count < 3:
        return _ring(rates, tuple(range(count))).worth
    widest = [sorted((rates[a][b] for b in range(count) if b != a), reverse=True)[:2] for a in range(count)]
    return min(pair[1] for pair in widest), round(sum(map(sum, widest)) / 2, 6)


def links_of(order: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of neighbours in a ring of this order."""
    if len(order) < 3:
        return [(order[0], order[1])] if len(order) == 2 else []
    return list(zip(order, [*order[1:], order[0]], strict=True))


def _ring(rates: Rates, order: tuple[int, ...]) -> Ring:
    carried = [rates[a][b] for a, b in links_of(order)]
    return Ring(order, min(carried, default=0.0), round(sum(carried), 6))


def _greedy(rates: Rates) -> Ring:
    """The best greedy ring: starts at each device in turn and always goes to the remaining device with the fastest
    link."""
    count = len(rates)
    found = []
    for first in range(count):
        order, left = [first], set(range(count)) - {first}
        while left:
            order.append(max(left, key=lambda other: (rates[order[-1]][other], -other)))
            left.remove(order[-1])
        found.append(_ring(rates, _from_zero(tuple(order))))
    return max(found, key=lambda ring: ring.worth)


def _two_opt(rates: Rates, ring: Ring) -> Ring:
    """Improves a ring by 2-opt: reverses segments as long as that helps."""
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
    """The Held-Karp algorithm, once for each link rate as a minimum, fastest first. The first rate that allows a ring
    is the best slowest link; among the rings with that minimum the one with the highest total is returned."""
    minimums = sorted({rates[a][b] for a in range(len(rates)) for b in range(a)}, reverse=True)
    for minimum in minimums:
        order = _highest_total(rates, minimum)
        if order is not None:
            return _ring(rates, order)
    raise AssertionError("every pair has a rate, so the slowest rate allows every ring")


def _highest_total(rates: Rates, minimum: float) -> tuple[int, ...] | None:
    """The ring with the highest total whose links all have at least `minimum` GB/s; None if there is none."""
    count = len(rates)
    # For the paths from device 0 through a set of devices (bits, without 0) to `last`: highest total, and the device
    # before `last`.
    most: list[dict[int, tuple[float, int]]] = [{} for _ in range(1 << (count - 1))]
    for last in range(1, count):
        if rates[0][last] >= minimum:
            most[1 << (last - 1)][last] = (rates[0][last], 0)
    for members in range(1, 1 << (count - 1)):
        for last, (carried, _) in most[members].items():
            for after in range(1, count):
                bit = 1 << (after - 1)
                if members & bit or rates[last][after] < minimum:
                    continue
                further = carried + rates[last][after]
                kept = most[members | bit].get(after)
                if kept is None or further > kept[0]:
                    most[members | bit][after] = (further, last)
    members = (1 << (count - 1)) - 1
    ends = {last: carried + rates[last][0] for last, (carried, _) in most[members].items() if rates[last][0] >= minimum}
    if not ends:
        return None
    last = max(ends, key=lambda end: (ends[end], -end))
    order = []
    while last:
        order.append(last)
        members, last = members & ~(1 << (last - 1)), most[members][last][1]
    return _from_zero((0, *order))


def _from_zero(order: tuple[int, ...]) -> tuple[int, ...]:
    """The same ring in canonical form: starts at device 0 and continues with the lower of its two neighbours."""
    start = order.index(0)
    order = order[start:] + order[:start]
    return order if len(order) < 3 or order[1] < order[-1] else (order[0], *order[:0:-1])
