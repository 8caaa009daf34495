"""Which K of a machine's GPUs to take, and why.

The best ring decides (`rings`): its slowest link, then its bandwidth in all; then as few NUMA nodes as can be;
then the lowest numbers. Up to 16 GPUs every choice is weighed; above, a choice grows from each GPU and is
mended by exchanges.
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

EXACT = 16


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """K GPUs. `ring` is the order in which the best ring goes round; `gb_per_s` its slowest link."""

    k: int
    devices: tuple[int, ...]
    why: str
    ring: tuple[int, ...] = ()
    kind: str = ""  # of the slowest link
    gb_per_s: float | None = None


def choose(topology: Topology, k: int, *, among: Sequence[int] | None = None) -> Choice:
    """The best K of the topology's GPUs, or of those `among` them. UsageError where there are not so many."""
    indices = sorted(gpu.index for gpu in topology.devices if among is None or gpu.index in among)
    if k < 1:
        raise UsageError(f"{k} GPUs were to be chosen.", advice="Choose one at least: --choose 1")
    if k > len(indices):
        found = f"there {'is' if len(indices) == 1 else 'are'} {len(indices) or 'none'}"
        raise UsageError(
            f"{k} GPUs were to be chosen, and {found}.",
            advice=f"Choose {len(indices)} at most: --choose {len(indices)}"
            if indices
            else "Show a machine with GPUs, from a file: --from topology.txt",
        )
    links = {(link.a, link.b): link for link in topology.links}
    for pair in itertools.combinations(indices, 2):
        if pair not in links:
            raise UsageError(
                f"It is not known how GPU{pair[0]} and GPU{pair[1]} are joined.",
                advice="Show a topology with a link for every pair of GPUs.",
            )
    nodes = {gpu.index: gpu.node for gpu in topology.devices}
    weigh = _Weigher(links, nodes)
    chosen = weigh.best(indices, k) if len(indices) <= EXACT else weigh.good(indices, k)
    ring = tuple(chosen[place] for place in weigh.ring(chosen).order)
    slowest = min((links[_pair(a, b)] for a, b in links_of(ring)), key=lambda link: link.gb_per_s, default=None)
    return Choice(
        k=k,
        devices=chosen,
        why=_why(chosen, ring, slowest, links, nodes, indices),
        ring=ring,
        kind=slowest.kind if slowest else "",
        gb_per_s=slowest.gb_per_s if slowest else None,
    )


class _Weigher:
    """What each choice is worth. Machines are regular, so most choices look like one that was seen before."""

    def __init__(self, links: dict[tuple[int, int], Link], nodes: dict[int, int | None]) -> None:
        self._links, self._nodes = links, nodes
        self._seen: dict[tuple[tuple[float, ...], ...], Ring] = {}

    def best(self, indices: Sequence[int], k: int) -> tuple[int, ...]:
        """Of all choices."""
        best: tuple[int, ...] = ()
        worth: tuple[float, float, int] | None = None
        for chosen in itertools.combinations(indices, k):  # the lowest numbers first
            rates = self._rates(chosen)
            spread = self._spread(chosen)
            if worth is not None and (*upper_bound(rates), -spread) <= worth:
                continue
            found = (*self._ring(rates).worth, -spread)
            if worth is None or found > worth:
                best, worth = chosen, found
        return best

    def good(self, indices: Sequence[int], k: int) -> tuple[int, ...]:
        """Grown from each GPU by the best joined, then mended by exchanging one for another."""
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
        """Through these GPUs, by their places in `chosen`."""
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
    """One sentence for a person."""
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
        said = f"the slowest link of the ring {round_trip} is {link}, {total:g} GB/s in all{where}"
    choices = math.comb(len(indices), len(chosen))
    if choices == 1:
        return said
    return f"{said}; {'the best' if len(indices) <= EXACT else 'the best found'} of {choices:,} choices"
