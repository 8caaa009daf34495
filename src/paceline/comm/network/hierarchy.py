"""A sum over several hosts: within each host first, then between hosts, so that a host sends its gradient once and not
once a worker.

    host A   worker 0: part 0 ─┐  host's sum    lane 0: A.0 ↔ B.0   ┌─ all parts to all workers
             worker 1: part 1 ─┤  of each part  lane 1: A.1 ↔ B.1   │
    host B   worker 0: part 0 ─┤                                    │
             worker 1: part 1 ─┘                                    ┘

A *lane* is a wire between one worker of each host; each part crosses the network on its own lane. With as many lanes as
the smallest host has workers (the default) all processes share the work of the network; with one lane each host has a
leader. What the hosts do within themselves is a `Local`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

from paceline.comm.network import algorithms
from paceline.comm.network.compression import Compressor
from paceline.comm.network.costs import Costs
from paceline.comm.network.messages import Wire, connect
from paceline.comm.network.parts import chunks, cut

SLAB = 4 << 20  # bytes: while one slab is on the network, the next is added up within the host


class Local(Protocol):
    """The workers of one host, of which this one is `rank`. Each calls both methods, in the same order.

    `reduce_parts` of a slab may come before `share_parts` of the slab before it; never before that of the one before
    that. So two slabs at most are open at a time, and are closed in the order in which they were opened."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def reduce_parts(self, flat: torch.Tensor, parts: int) -> torch.Tensor:
        """Cuts `flat` by `cut(len(flat), parts)`, and waits until the host's sum of part `rank` is here: gives it. It
        may be a view of `flat` or lie elsewhere; the caller changes it in place, from any thread, before
        `share_parts`. Workers from `parts` on get an empty tensor. The rest of `flat` may hold anything."""

    def share_parts(self, flat: torch.Tensor, parts: int) -> None:
        """Waits until `flat` holds all parts, each as its worker's part is now."""


def count_lanes(workers: Sequence[int], *, leaders: bool = False) -> int:
    """The number of lanes between hosts with these numbers of workers: every lane has a worker on every host."""
    return 1 if leaders else min(workers)


def connect_lane(
    store: Any, name: str, *, host: int, hosts: int, local_rank: int, lanes: int, address: str | None = None
) -> Wire | None:
    """This worker's lane, if it has one. Every worker calls it; those with a lane wait for its other ends."""
    if local_rank >= lanes:
        return None
    return connect(store, f"{name}/lane{local_rank}", host, hosts, address=address)


def all_reduce(
    flat: torch.Tensor,
    local: Local,
    wire: Wire | None,
    *,
    lanes: int,
    compressor: Compressor | None = None,
    algorithm: str | None = None,
    costs: Costs | None = None,
    slab: int = SLAB,
) -> None:
    """Sums `flat` over all workers of all hosts, in place. Every worker calls it, with the same `lanes` and the same
    settings, and waits for all; all end with the same bits.

    A worker that is gone raises the wire's or the local leg's error; then this worker's lane is closed, so that other
    hosts notice too. Half types are rounded at the host's sum and at the total."""
    if (wire is not None) != (local.rank < lanes) or lanes > local.world:
        raise ValueError(f"Worker {local.rank} of {local.world} on its host does not fit {lanes} lanes.")

    def exchange(part: torch.Tensor, offset: int) -> None:
        if wire is None:
            return
        if compressor is not None:
            compressor.all_reduce(part, wire, offset=offset, costs=costs)
        else:
            algorithms.all_reduce(part, wire, algorithm=algorithm, costs=costs)

    slabs = [flat] if compressor is not None and compressor.whole else chunks(flat, slab)
    try:
        if len(slabs) > 1:
            return _overlap(slabs, local, lanes, exchange)
        for only in slabs:
            exchange(local.reduce_parts(only, lanes), _offset(only, local.rank, lanes))
            local.share_parts(only, lanes)
    except BaseException:
        if wire is not None:
            wire.close()
        raise


def _overlap(slabs: Sequence[torch.Tensor], local: Local, lanes: int, exchange: Any) -> None:
    """The network in a thread of its own: its waiting, and torch's additions, leave the interpreter to the others."""
    open_slabs: deque[tuple[torch.Tensor, Future[None]]] = deque()
    begun = 0
    network = ThreadPoolExecutor(1, "paceline-network")
    try:
        for slab in slabs:
            part = local.reduce_parts(slab, lanes)
            open_slabs.append((slab, network.submit(exchange, part, begun)))
            begun += slab.numel()
            if len(open_slabs) > 1:
                _close(local, lanes, *open_slabs.popleft())
        for slab, future in open_slabs:
            _close(local, lanes, slab, future)
    finally:
        network.shutdown(wait=False, cancel_futures=True)


def _close(local: Local, lanes: int, slab: torch.Tensor, exchanged: Future[None]) -> None:
    exchanged.result()
    local.share_parts(slab, lanes)


def _offset(flat: torch.Tensor, rank: int, lanes: int) -> int:
    return cut(flat.numel(), lanes)[rank][0] if rank < lanes else 0
