"""Hierarchical all-reduce over several hosts: first within each host, then between hosts.

Each host sends its gradient over the network once, instead of once per worker.

    host A   worker 0: part 0 ─┐  host's sum    lane 0: A.0 ↔ B.0   ┌─ all parts to all workers
             worker 1: part 1 ─┤  of each part  lane 1: A.1 ↔ B.1   │
    host B   worker 0: part 0 ─┤                                    │
             worker 1: part 1 ─┘                                    ┘

A *lane* is a wire between one worker of each host; each part crosses the network on its own lane. By default there are
as many lanes as the smallest host has workers, so that all processes share the network work. With one lane each host
has a leader. `Local` is the interface of the sums within a host.
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
from paceline.comm.network.gloo_wire import Wire, connect
from paceline.comm.network.parts import chunks, cut

SLAB = 4 << 20  # bytes: while one slab is on the network, the next slab is summed within the host


class Local(Protocol):
    """The `world` workers of one host; `rank` is this worker. Every worker calls both methods in the same order.

    At most two slabs are open at a time: `reduce_parts` opens a slab and `share_parts` closes it. Slabs are closed in
    the order in which they were opened."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def reduce_parts(self, flat: torch.Tensor, parts: int) -> torch.Tensor:
        """Cuts `flat` by `cut(len(flat), parts)`, waits for the host's sum of part `rank` and returns this sum. The
        result may be a view of `flat` or separate memory. The caller changes the result in place, from any thread,
        before `share_parts`. Workers with `rank >= parts` get an empty tensor. The other parts of `flat` are
        undefined."""

    def share_parts(self, flat: torch.Tensor, parts: int) -> None:
        """Waits until `flat` holds all parts, each with the current values of the worker that owns the part."""


def count_lanes(workers: Sequence[int], *, leaders: bool = False) -> int:
    """The number of lanes between hosts that have `workers[i]` workers each. Every lane needs a worker on every
    host."""
    return 1 if leaders else min(workers)


def connect_lane(
    store: Any, name: str, *, host: int, hosts: int, local_rank: int, lanes: int, address: str | None = None
) -> Wire | None:
    """This worker's lane, or None. Every worker calls it; workers with a lane wait for the other workers of the
    lane."""
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
    """Sums `flat` over all workers of all hosts, in place. Every worker calls it with the same settings and waits for
    all workers; all get the same bits.

    If a worker is gone, the error of the wire or of `local` is raised. This worker then closes its lane, so that the
    other hosts notice the failure. float16 and bfloat16 are rounded twice: in the host's sum and in the total."""
    if (wire is not None) != (local.rank < lanes) or lanes > local.world:
        raise ValueError(
            f"lanes={lanes} does not match worker {local.rank} of {local.world} on its host, "
            f"{'with' if wire is not None else 'without'} a wire."
        )

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
    """Runs the network part in a thread, so that it overlaps with sums within the host: network waits and torch's
    additions release the GIL."""
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
