"""Chooses the all-reduce algorithm for a message size: a cost model of each algorithm, and a measurement of the link.

The cost model is the usual one: a message costs the latency plus its bytes divided by the bandwidth, and a worker sends
and receives at the same time. The model need not be exact: near a switching point two algorithms cost the same.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from paceline.comm.network.gloo_wire import Wire

CHUNK = 1 << 19  # bytes: the largest message; one chunk is added while the next is on the network
PROBE = 4 << 20  # bytes of the message that measures bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one link between two workers. The default is a 10 Gbit/s network with Gloo."""

    latency: float = 100e-6  # seconds from the send on one worker to the receive on the other
    bandwidth: float = 1.1e9  # bytes per second, in each direction


def choose(size: int, world: int, costs: Costs | None = None) -> str:
    """The algorithm with the lowest estimated time to sum `size` bytes over `world` workers. Workers with equal costs
    choose the same algorithm."""
    known = costs or Costs()
    return min(MODELS, key=lambda name: estimate(name, size, world, known))


def estimate(algorithm: str, size: int, world: int, costs: Costs) -> float:
    """The estimated seconds of an algorithm."""
    if world == 1:
        return 0.0
    messages, factor = MODELS[algorithm](size, world)
    return messages * costs.latency + factor * size / costs.bandwidth


# Each model returns the number of messages in sequence, and the bytes per link as a multiple of the tensor size.


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
    """Reduce and broadcast through two trees at once; filling the pipeline takes one chunk per level."""
    depth = 2 * math.ceil(math.log2(world))
    piece = min(size / 2, CHUNK)
    return depth, 2 + depth * piece / max(size, 1)


MODELS = {"doubling": _doubling, "halving_doubling": _halving_doubling, "ring": _ring, "tree": _tree}


def measure(wire: Wire, rounds: int = 5) -> Costs:
    """The costs of the slowest link in the ring of the wire's workers. Every worker calls it, and all get the same
    result. Each round sends 4 MiB over every link at once, in both directions, as the algorithms do."""
    if wire.world == 1:
        return Costs()
    small, large = torch.zeros(1, device="cpu"), torch.zeros(PROBE // 4, device="cpu")
    latency = min(_ring_once(wire, small) for _ in range(rounds + 1))
    whole = min(_ring_once(wire, large) for _ in range(rounds))
    mine = torch.tensor([latency, PROBE / max(whole - latency, 1e-9)], dtype=torch.float64, device="cpu")
    table = torch.empty(wire.world, 2, dtype=torch.float64, device="cpu")
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
    """Seconds until the message from the left neighbour has arrived and the message to the right neighbour has left."""
    arrived = torch.empty_like(tensor)
    began = time.perf_counter()
    start = [wire.receive(arrived, (wire.rank - 1) % wire.world), wire.send(tensor, (wire.rank + 1) % wire.world)]
    for transfer in start:
        transfer.wait()
    return time.perf_counter() - began
