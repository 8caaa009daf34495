"""The links of a cluster as a graph with contention, and the time of an all-reduce on it.

A message costs a latency and its bytes over a rate (α–β). Messages that cross the same link at the same time share
its rate: the bytes on each link are added up, and the link with the most seconds decides. NVLinks between two GPUs
belong to that pair; GPUs on an NVSwitch share their ports, GPUs on PCIe their slots and the sockets' interconnect,
workers without GPUs the host's memory, and all workers of a host its NICs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

from paceline.plan.cluster import Cluster
from paceline.topology.choosing import choose
from paceline.topology.links import nvlinks, usual_rate
from paceline.topology.machine import Topology
from paceline.topology.rings import best_ring

SWITCHED = 18  # NVLinks of one GPU: if its pairs have more in sum, these links lead to a switch
SLAB = 4 << 20  # bytes: larger messages are summed within the host while others are on the network
CHUNK = 1 << 19  # bytes that fill one level of a tree
ALGORITHMS = ("ring", "tree", "hierarchical", "copy")


class Fabric:
    """The links of one host. Devices are GPU numbers or, without GPUs, worker numbers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.host = cluster, cluster.host
        self.capacity: dict[str, float] = {}  # bytes per second
        numbers = [nvlinks(link.kind) for link in self.host.links]
        self.gpus = [gpu.index for gpu in self.host.devices]
        # The sum over one GPU's pairs.
        most = max((self._sum(gpu) for gpu in self.gpus), default=0)
        self.switched = cluster.p2p and bool(numbers) and most > SWITCHED and min(numbers) > 0

    def _sum(self, gpu: int) -> int:
        return sum(nvlinks(link.kind) for link in self.host.links if gpu in (link.a, link.b))

    def path(self, a: int, b: int) -> tuple[str, ...]:
        """The links from device `a` to device `b`."""
        link = self.host.link(a, b)
        if link is None:
            return self._known({"memory": self.cluster.memory_gb_per_s * 1e9})
        direct = self.cluster.p2p and link.p2p is not False
        rate = link.gb_per_s * 1e9
        if nvlinks(link.kind) and direct:
            if self.switched:
                return self._known({f"port out {a}": rate, f"port in {b}": rate})
            return self._known({f"NVLink {a} to {b}": rate})
        if not direct:
            rate = usual_rate(link.kind, p2p=False) * 1e9
        found = {f"slot out {a}": rate, f"slot in {b}": rate}
        one, other = self._node(a), self._node(b)
        if link.kind == "SYS" and one != other:
            found[f"socket {one} to {other}"] = rate
        return self._known(found)

    def _known(self, found: dict[str, float]) -> tuple[str, ...]:
        for name, rate in found.items():
            self.capacity[name] = max(rate, self.capacity.get(name, 0.0))
        return tuple(found)

    def _node(self, index: int) -> int:
        gpu = self.host.gpu(index)
        return 0 if gpu is None or gpu.node is None else gpu.node

    def busy(self, flows: Iterable[tuple[int, int, float]]) -> float:
        """Seconds until all of these flows have ended that begin together: from, to, bytes."""
        load: Counter[str] = Counter()
        slowest = 0.0
        for a, b, size in flows:
            for name in self.path(a, b):
                load[name] += size  # type: ignore[assignment]
            link = self.host.link(a, b)
            if link is not None and not nvlinks(link.kind):  # a path's own rate may be below that of the slots
                rate = link.gb_per_s if self.cluster.p2p and link.p2p is not False else usual_rate(link.kind, p2p=False)
                slowest = max(slowest, size / (rate * 1e9))
        return max([size / self.capacity[name] for name, size in load.items()] + [slowest])

    def devices(self, count: int) -> tuple[int, ...]:
        """The devices of `count` workers: the best GPUs for a ring, as `run` chooses them."""
        return _chosen(self.host, count) if self.gpus else tuple(range(count))

    @cache  # noqa: B019 - a fabric lives as long as its plan
    def ring_rate(self, devices: tuple[int, ...]) -> float:
        """Bytes per second of a ring all-reduce through these devices: over as many rings as their NVLinks allow, in
        both directions; over one ring on other links. Infinite for one device."""
        if len(devices) < 2:
            return math.inf
        rates = [[self._direct(a, b) for b in devices] for a in devices]
        total = 0.0
        while not self.switched and (ring := best_ring(rates)).slowest > 0:
            order = ring.order
            total += ring.slowest * (1 if len(order) == 2 else 2)
            for a, b in zip(order, (*order[1:], order[0]), strict=True):
                if len(order) > 2 or a < b:
                    rates[a][b] -= ring.slowest
                    rates[b][a] = rates[a][b]
        if total:
            return total
        if not self.gpus:
            return self.cluster.memory_gb_per_s * 1e9 / len(devices)
        pairs = [[0.0 if a == b else self._rate(a, b) for b in devices] for a in devices]
        order = tuple(devices[at] for at in best_ring(pairs).order)
        return 1 / self.busy((a, b, 1.0) for a, b in zip(order, (*order[1:], order[0]), strict=True))

    def _direct(self, a: int, b: int) -> float:
        """The rate of NVLinks that belong to this pair."""
        link = self.host.link(a, b)
        own = link is not None and nvlinks(link.kind) and self.cluster.p2p and link.p2p is not False
        return link.gb_per_s * 1e9 if link is not None and own and not self.switched else 0.0

    def _rate(self, a: int, b: int) -> float:
        return 1 / self.busy([(a, b, 1.0)])

    def copy_time(self, devices: tuple[int, ...]) -> float:
        """Seconds per byte of a sum by copies: to one device of each NUMA node, to one device of all, and back."""
        nodes: dict[int, list[int]] = {}
        for device in devices:
            nodes.setdefault(self._node(device), []).append(device)
        groups = list(nodes.values())
        best = math.inf
        for root in groups[0]:
            heads = [root] + [max(group, key=lambda other: self._rate(other, root)) for group in groups[1:]]
            inner = [
                (one, head, 1.0) for group, head in zip(groups, heads, strict=True) for one in group if one != head
            ]
            outer = [(head, root, 1.0) for head in heads[1:]]
            best = min(best, 2 * ((self.busy(inner) if inner else 0) + (self.busy(outer) if outer else 0)))
        return best


@cache
def _chosen(host: Topology, count: int) -> tuple[int, ...]:
    everything = tuple(gpu.index for gpu in host.devices)
    return everything if count >= len(everything) else choose(host, count).devices


# -- collectives -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """N workers on a cluster: as many on each host as fit, host by host."""

    fabric: Fabric
    workers: int
    devices: tuple[int, ...] = ()  # of the first host; empty: chosen

    @cached_property
    def hosts(self) -> int:
        return -(-self.workers // self.fabric.cluster.slots)

    @cached_property
    def local(self) -> int:
        """Workers of the fullest host."""
        return min(self.workers, self.fabric.cluster.slots) if self.hosts == 1 else -(-self.workers // self.hosts)

    @cached_property
    def here(self) -> tuple[int, ...]:
        return self.devices or self.fabric.devices(self.local)

    @cached_property
    def local_rate(self) -> float:
        return self.fabric.ring_rate(self.here)

    def all_reduce(self, algorithm: str, size: float) -> float:
        """Seconds of a sum of `size` bytes over all workers."""
        return self.costs[algorithm](size) if self.workers > 1 and size > 0 else 0.0

    def one_way(self, size: float) -> float:
        """Seconds of a reduce-scatter, or of an all-gather, of `size` bytes in total."""
        return self.all_reduce("hierarchical", size) / 2

    @cached_property
    def costs(self) -> dict[str, _Cost]:
        return {name: _cost(self, name) for name in ALGORITHMS}

    def message(self) -> float:
        """Seconds of a small exchange between all workers: in memory, or a ring of messages between hosts."""
        cluster = self.fabric.cluster
        if self.workers < 2:
            return 0.0
        return cluster.local_latency if self.hosts == 1 else (self.workers - 1) * cluster.latency

    def limit(self) -> str:
        """What a large sum waits for, in words."""
        cluster = self.fabric.cluster
        if self.hosts > 1 and self.local_rate > cluster.network:
            nics = f"{cluster.nics} × " if cluster.nics > 1 else ""
            return f"the network between hosts ({nics}{cluster.gbit_per_s:g} Gbit/s)"
        return "the links within a host" if self.fabric.gpus else "the memory of a host"


@dataclass(frozen=True)
class _Cost:
    """Seconds of an all-reduce: `local` and `wire` are seconds per byte, which overlap from the second slab on."""

    latency: float
    local: float
    wire: tuple[tuple[float, float, float], ...] = ()  # of each algorithm between hosts: latency, per byte, filling

    def __call__(self, size: float) -> float:
        first = min(size, SLAB)
        inside = self.latency + self.local * size
        if not self.wire:
            return inside
        slabs = math.ceil(size / SLAB)

        def between(size: float) -> float:
            return min(latency + per_byte * (size + fill * min(size, CHUNK)) for latency, per_byte, fill in self.wire)

        return max(slabs * between(size / slabs) + self.local * first, inside)


def _cost(place: Place, algorithm: str) -> _Cost:
    cluster, n, hosts, local = place.fabric.cluster, place.workers, place.hosts, place.local
    alpha = cluster.latency if hosts > 1 else cluster.local_latency
    rate = min(place.local_rate, cluster.network) if hosts > 1 else place.local_rate
    levels = math.ceil(math.log2(n)) if n > 1 else 0
    if algorithm == "ring":
        return _Cost(2 * (n - 1) * alpha, 2 * (n - 1) / n / rate)
    if algorithm == "tree":
        return _Cost(2 * levels * alpha, 2 / rate)
    inside = 2 * (local - 1) / local / place.local_rate
    within = 2 * (local - 1) * cluster.local_latency
    if algorithm == "copy":
        inside = place.fabric.copy_time(place.here)
        within = 4 * cluster.local_latency
    return _Cost(within, inside, _between(hosts, cluster.latency, 1 / cluster.network) if hosts > 1 else ())


def _between(hosts: int, alpha: float, per_byte: float) -> tuple[tuple[float, float, float], ...]:
    """The algorithms between hosts, of which the fastest is taken for each size: see `comm.network`."""
    core = 1 << int(math.log2(hosts))
    folded = 2 if core != hosts else 0
    doubling = int(math.log2(hosts)) + folded
    depth = 2 * math.ceil(math.log2(hosts))
    return (
        (2 * (hosts - 1) * alpha, 2 * (hosts - 1) / hosts * per_byte, 0),
        (doubling * alpha, doubling * per_byte, 0),
        ((2 * math.log2(core) + folded) * alpha, (2 * (core - 1) / core + folded) * per_byte, 0),
        (depth * alpha, 2 * per_byte, depth / 2),
    )
