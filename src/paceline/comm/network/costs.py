"""Which algorithm for which size: what each costs on a link, and a measurement of the link.

The model is the usual one. A message costs a latency, and its bytes over the bandwidth; what a worker sends and what it
receives travel at the same time. It need not be exact: near a border two algorithms cost the same.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from paceline.comm.network.messages import Wire

CHUNK = 1 << 19  # bytes: the largest message; what has arrived is added up while the next one travels
PROBE = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one link, between two workers. The default is a 10 Gbit/s network under Gloo."""

    latency: float = 100e-6  # seconds from one worker's send to the other's receive
    bandwidth: float = 1.1e9  # bytes a second, each way


def choose(size: int, world: int, costs: Costs | None = None) -> str:
    """The algorithm that should sum `size` bytes over `world` workers soonest: every worker that knows the same costs
    chooses the same."""
    known = costs or Costs()
    return min(MODELS, key=lambda name: estimate(name, size, world, known))


def estimate(algorithm: str, size: int, world: int, costs: Costs) -> float:
    """Seconds that an algorithm should take."""
    if world == 1:
        return 0.0
    messages, factor = MODELS[algorithm](size, world)
    return messages * costs.latency + factor * size / costs.bandwidth


# By algorithm: how many messages follow one another, and how often the whole tensor passes a worker's link.


def _doubling(size: int, world: int) -> tuple[float, float]:
    rounds = int(math.log2(world)) + (2 if world & (world - 1) else 0)
    return rounds, rounds


def _halving_doubling(size: int, world: int) -> tuple[float, float]:
    core = 1 << int(math.log2(world))
    folded = 2 if core != world else 0
    return 2 * math.log2(core) + folded, 2 * (core - 1) / core + folded


def _ring(size: int, world: int) -> tuple[float, float]:
    return 2 * (world - 1), 2 * (world - 1) / world


def _tree(size: int, world: int) -> tuple[float, float]:
    """Up and down through two trees at once; the first chunk has to pass all levels before the last one ends."""
    depth = 2 * math.ceil(math.log2(world))
    piece = min(size / 2, CHUNK)
    return depth, 2 + depth * piece / max(size, 1)


MODELS = {"doubling": _doubling, "halving_doubling": _halving_doubling, "ring": _ring, "tree": _tree}


def measure(wire: Wire, rounds: int = 5) -> Costs:
    """The costs of this wire: the slowest link of the ring of its workers. Every worker calls it, and all get the same
    numbers. Moves 4 MB a round, both ways over every link at once, as the algorithms do."""
    if wire.world == 1:
        return Costs()
    small, large = torch.zeros(1), torch.zeros(PROBE // 4)
    latency = min(_ring_once(wire, small) for _ in range(rounds + 1))
    whole = min(_ring_once(wire, large) for _ in range(rounds))
    mine = torch.tensor([latency, PROBE / max(whole - latency, 1e-9)], dtype=torch.float64)
    table = torch.empty(wire.world, 2, dtype=torch.float64)
    table[wire.rank] = mine
    for transfer in [
        start
        for peer in range(wire.world)
        if peer != wire.rank
        for start in (wire.receive(table[peer], peer), wire.send(mine, peer))
    ]:
        transfer.wait()
    return Costs(latency=float(table[:, 0].max()), bandwidth=float(table[:, 1].min()))


def _ring_once(wire: Wire, tensor: torch.Tensor) -> float:
    """Seconds until a message from the left is here and ours is gone to the right."""
    arrived = torch.empty_like(tensor)
    began = time.perf_counter()
    start = [wire.receive(arrived, (wire.rank - 1) % wire.world), wire.send(tensor, (wire.rank + 1) % wire.world)]
    for transfer in start:
        transfer.wait()
    return time.perf_counter() - began
