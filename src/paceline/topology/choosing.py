"""Chooses K of a machine's GPUs, and explains the choice.

The criteria, in order: the slowest link of the best ring (`rings`), the total bandwidth of that ring, the fewest NUMA
nodes, the lowest GPU numbers. For up to 16 GPUs every choice is evaluated. For more GPUs a greedy choice is grown from
each GPU, and the best of them is improved by swaps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from paceline.errors import UsageError
from paceline.topology import links as kinds
from paceline.topology.machine import Link, Topology
from paceline.topology.rings import Rates, Ring, best_ring, links_of, upper_bound

EXACT = 16  # GPUs: up to this number every choice is evaluated


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of K GPUs. `ring` is the order of the best ring; `gb_per_s` is the rate of its slowest link."""

    k: int
    devices: tuple[int, ...]
    why: str
    ring: tuple[int, ...] = ()
    kind: str = ""  # kind of the slowest link
    gb_per_s: float | None = None


def choose(topology: Topology, k: int, *, among: Sequence[int] | None = None) -> DeviceChoice:
    """The best K GPUs of the topology, or of the indices in `among`. Raises UsageError if there are fewer than K."""
    indices = sorted(gpu.index for gpu in topology.devices if among is None or gpu.index in among)
    if k < 1:
        raise UsageError(f"Cannot choose {k} GPUs: the number must be at least 1.", advice="Type: --choose 1")
    if k > len(indices):
        found = f"there {'is' if len(indices) == 1 else 'are'} only {len(indices)}" if indices else "there are none"
        raise UsageError(
            f"Cannot choose {k} GPUs: {found}.",
            advice=f"Type: --choose {len(indices)}"
            if indices
            else "Read the topology of a machine with GPUs from a file: --from topology.txt",
        )
    links = {(link.a, link.b): link for link in topology.links}
    for pair in itertools.combinations(indices, 2):
        if pair not in links:
            raise UsageError(
                f"The topology has no link between GPU{pair[0]} and GPU{pair[1]}.",
                advice="Read a topology with a link for every pair of GPUs from a file: --from topology.txt",
            )
    nodes = {gpu.index: gpu.node for gpu in topology.devices}
    weigh = _Weigher(links, nodes)
    chosen = weigh.best(indices, k) if len(indices) <= EXACT else weigh.good(indices, k)
    ring = tuple(chosen[place] for place in weigh.ring(chosen).order)
    slowest = min((links[_pair(a, b)] for a, b in links_of(ring)), key=lambda link: link.gb_per_s, default=None)
    return DeviceChoice(
        k=k,
        devices=chosen,
        why=_why(chosen, ring, slowest, links, nodes, indices),
        ring=ring,
        kind=slowest.kind if slowest else "",
        gb_per_s=slowest.gb_per_s if slowest else None,
    )


class _Weigher:
    """Evaluates choices. Caches rings by their rates: machines are regular, so most choices have the same rates as an
    earlier one."""

    def __init__(self, links: dict[tuple[int, int], Link], nodes: dict[int, int | None]) -> None:
        self._links, self._nodes = links, nodes
        self._seen: dict[tuple[tuple[float, ...], ...], Ring] = {}

    def best(self, indices: Sequence[int], k: int) -> tuple[int, ...]:
        """The best of all choices."""
        best: tuple[int, ...] = ()
        worth: tuple[float, float, int] | None = None
        for chosen in itertools.combinations(indices, k):  # lowest numbers first, so that they win a tie
            rates = self._rates(chosen)
            spread = self._spread(chosen)
            if worth is not None and (*upper_bound(rates), -spread) <= worth:
                continue
            found = (*self._ring(rates).worth, -spread)
            if worth is None or found > worth:
                best, worth = chosen, found
        return best

    def good(self, indices: Sequence[int], k: int) -> tuple[int, ...]:
        """A greedy choice, grown from each GPU by the fastest links, then improved by swaps."""
        grown = {self._grown(first, indices, k) for first in indices}
        chosen = max(sorted(grown), key=self._worth)
        better = True
        while better:
            better = False
            for leaves, comes in itertools.product(chosen, set(indices) - set(chosen)):
                tried = tuple(sorted({*chosen, comes} - {leaves}))
                if self._worth(tried) > self._worth(chosen):
                    chosen, better = tried, True
                    break
        return chosen

    def ring(self, chosen: tuple[int, ...]) -> Ring:
        """The best ring through these GPUs, as positions in `chosen`."""
        return self._ring(self._rates(chosen))

    def _grown(self, first: int, indices: Sequence[int], k: int) -> tuple[int, ...]:
        chosen = [first]
        while len(chosen) < k:
            left = [index for index in indices if index not in chosen]
            chosen.append(
                max(
                    left,
                    key=lambda index: (
                        sorted((self._rate(index, each) for each in chosen), reverse=True)[:2],
                        sum(self._rate(index, each) for each in chosen),
                        self._nodes[index] == self._nodes[first],
                        -index,
                    ),
                )
            )
        return tuple(sorted(chosen))

    def _worth(self, chosen: tuple[int, ...]) -> tuple[float, float, int, tuple[int, ...]]:
        return *self.ring(chosen).worth, -self._spread(chosen), tuple(-index for index in chosen)

    def _rates(self, chosen: Sequence[int]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(self._rate(a, b) for b in chosen) for a in chosen)

    def _rate(self, a: int, b: int) -> float:
        return 0.0 if a == b else self._links[_pair(a, b)].gb_per_s

    def _spread(self, chosen: Sequence[int]) -> int:
        return len({self._nodes[index] for index in chosen})

    def _ring(self, rates: Rates) -> Ring:
        key = tuple(map(tuple, rates))
        if key not in self._seen:
            self._seen[key] = best_ring(rates)
        return self._seen[key]


def _pair(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def _why(
    chosen: tuple[int, ...],
    ring: tuple[int, ...],
    slowest: Link | None,
    links: dict[tuple[int, int], Link],
    nodes: dict[int, int | None],
    indices: Sequence[int],
) -> str:
    """The reason for a choice, as one phrase for the user."""
    here = sorted({-1 if (node := nodes[index]) is None else node for index in chosen})
    if -1 in here:
        where = ""
    elif len(here) == 1:
        where = f", on NUMA node {here[0]}"
    else:
        where = f", across NUMA nodes {' and '.join(map(str, here))}"
    if slowest is None:
        return f"one GPU needs no link{where}"
    blocked = ", no peer-to-peer access" if slowest.p2p is False else ""
    link = f"{kinds.in_words(slowest.kind)} ({slowest.kind}, {slowest.gb_per_s:g} GB/s{blocked})"
    if len(chosen) == 2:
        said = f"joined by {link}{where}"
    else:
        round_trip = "–".join(str(index) for index in (*ring, ring[0]))
        total = sum(links[_pair(a, b)].gb_per_s for a, b in links_of(ring))
        said = f"the slowest link of the ring {round_trip} is {link}, total bandwidth {total:g} GB/s{where}"
    choices = math.comb(len(indices), len(chosen))
    if choices == 1:
        return said
    return f"{said}; {'the best' if len(indices) <= EXACT else 'the best found'} of {choices:,} choices"
