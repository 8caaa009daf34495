"""Measures messages between every pair of workers of a host, through shared memory and over Gloo, and over Gloo between
the hosts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import torch

from paceline.comm.measuring.plan import FLOAT, MeasuringPlan, Pair
from paceline.comm.measuring.rounds import Contender, OverGloo, Together, time_contenders
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.network.gloo import LOOPBACK, gloo_group
from paceline.wire.link import within

TAG = 7


def measure(
    plan: MeasuringPlan, engine: Together, store: Any, *, hosts: Sequence[int] = (), address: str = LOOPBACK
) -> Iterator[Pair]:
    """Every worker iterates it to the end. While one pair measures, the other workers wait, so that they do not disturb
    the measurement. Every worker gets the reports of all pairs. `hosts`: the number of each worker's host, if there are
    several; of two hosts, the first workers measure. `address`: of this host."""
    firsts = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]
    for a, b in itertools.combinations(range(engine.world), 2):
        apart = bool(hosts) and hosts[a] != hosts[b]
        if apart and not {a, b} <= {*firsts}:
            continue
        found = []
        if engine.rank in (a, b):
            there = within(store, f"pair/{a}/{b}")
            ends = (hosts[a], hosts[b]) if apart else (a, b)
            found = _measure(plan, ends, int(engine.rank == b), there, address if apart else None)
        reports = engine.gather_bytes(msgspec.msgpack.encode(found))
        yield from next(filter(None, (msgspec.msgpack.decode(raw, type=list[Pair]) for raw in reports)))


def _measure(plan: MeasuringPlan, ends: tuple[int, int], place: int, store: Any, address: str | None) -> list[Pair]:
    """`address`: of this host, if the other end is on another one."""
    numel = max(1, plan.pair_bytes // FLOAT)
    gloo = gloo_group(within(store, "gloo"), place, 2, address=address or LOOPBACK)
    contenders, together = _over_gloo(gloo, place, numel), cast(Together, OverGloo(gloo))
    if address is None:
        together = memory = MemoryEngine(within(store, "memory"), place, 2)
        contenders = [*_through_memory(memory, numel), *contenders]
    times = time_contenders(contenders, together, rounds=plan.rounds, seconds=plan.seconds)
    backends = ("memory", "gloo") if address is None else ("gloo",)
    return [
        Pair(
            between="workers" if address is None else "hosts",
            a=ends[0],
            b=ends[1],
            backend=backend,
            direct=backend == "memory",
            bytes=numel * FLOAT,
            one_way=one_way,
            both_ways=both_ways,
            latency=[seconds / 2 for seconds in there_and_back],
        )
        for backend, (one_way, both_ways, there_and_back) in zip(backends, (times[:3], times[3:]), strict=False)
    ]


def _through_memory(engine: MemoryEngine, numel: int) -> list[Contender]:
    mine, other, word = torch.ones(numel), torch.ones(numel), torch.ones(1)
    both = [mine, other] if engine.rank == 0 else [other, mine]  # `mine` is its own destination: no extra copy

    def there_and_back() -> None:
        engine.broadcast(word, 0)
        engine.broadcast(word, 1)

    return [
        Contender(lambda: engine.broadcast(mine, 0)),
        Contender(lambda: engine.all_gather(mine, both)),
        Contender(there_and_back),
    ]


def _over_gloo(group: Any, place: int, numel: int) -> list[Contender]:
    mine, other, word = torch.ones(numel), torch.ones(numel), torch.ones(1)
    peer = 1 - place

    def send(tensor: torch.Tensor) -> Any:
        return group.send([tensor], peer, TAG)

    def receive(tensor: torch.Tensor) -> Any:
        return group.recv([tensor], peer, TAG)

    def one_way() -> None:
        (receive(other) if place else send(mine)).wait()

    def both_ways() -> None:
        sent, received = send(mine), receive(other)
        received.wait()
        sent.wait()

    def there_and_back() -> None:
        for step in (send, receive) if place == 0 else (receive, send):
            step(word).wait()

    return [Contender(one_way), Contender(both_ways), Contender(there_and_back)]
