"""Channel for workers on several hosts: hierarchical all-reduce for gradient buckets, Gloo for everything else.

A separate thread sums the buckets, in the order in which they were started. Most of that time is spent waiting for the
network, so the sums overlap with backward.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from paceline.comm.channels import GlooChannel
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.reductions import Shared
from paceline.comm.network import costs, hierarchy
from paceline.comm.network.compression import Bfloat16, Compressor, Float16
from paceline.comm.network.parts import cut
from paceline.comm.network.powersgd import PowerSGD
from paceline.settings import Compression
from paceline.wire.link import within


class MemoryLocal:
    """The intra-host half of the hierarchical all-reduce, in shared memory."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self.rank, self.world = engine.rank, engine.world

    def reduce_parts(self, flat: torch.Tensor, parts: int) -> torch.Tensor:
        places = self._places(flat, parts)
        self._engine.reduce_scatter(flat, places[self.rank], [place.numel() for place in places])
        return places[self.rank]

    def share_parts(self, flat: torch.Tensor, parts: int) -> None:
        places = self._places(flat, parts)
        self._engine.all_gather(places[self.rank], places, name="parts of gradients")

    def _places(self, flat: torch.Tensor, parts: int) -> list[torch.Tensor]:
        cuts = cut(flat.numel(), parts) + [(0, 0)] * (self.world - parts)
        return [flat[start:end] for start, end in cuts]


class HostsChannel(GlooChannel):
    """A channel between workers on several hosts."""

    name = "hosts"
    algorithms: tuple[str, ...] = ("ring", "halving_doubling", "tree")

    def __init__(self, store: Any, rank: int, hosts: Sequence[str], *, address: str) -> None:
        """Every worker of the run calls it. `hosts[r]` names the host of worker r. `address` is the address at which
        the other hosts reach this host."""
        super().__init__(store, rank, len(hosts), address=address)
        names = list(dict.fromkeys(hosts))
        host = names.index(hosts[rank])
        here = [r for r, name in enumerate(hosts) if name == hosts[rank]]
        local_rank = here.index(rank)
        self._lanes = hierarchy.count_lanes([list(hosts).count(name) for name in names])
        self._local = MemoryLocal(MemoryEngine(within(store, f"host{host}"), local_rank, len(here), names=here))
        self._lane = hierarchy.connect_lane(
            store, "buckets", host=host, hosts=len(names), local_rank=local_rank, lanes=self._lanes, address=address
        )
        # The workers of a lane measure it together. Costs may differ between lanes, but must be equal within a lane.
        self.costs = costs.measure(self._lane) if self._lane is not None else None
        self.compression: Compression = "none"
        self._compressors: dict[int, Compressor] = {}
        self._thread = ThreadPoolExecutor(1, "paceline-buckets")

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Future[None]:
        compressor = self._compressor(key, shapes)
        return self._thread.submit(
            hierarchy.all_reduce,
            flat,
            self._local,
            self._lane,
            lanes=self._lanes,
            compressor=compressor,
            algorithm=self.algorithm,
            costs=self.costs,
        )

    def finish(self, begun: Future[None]) -> None:
        begun.result()

    def _compressor(self, key: int, shapes: Sequence[Any]) -> Compressor | None:
        """The compressor of one bucket. Each bucket has its own, because PowerSGD keeps the residual of its bucket."""
        if self.compression == "none":
            return None
        if key not in self._compressors:
            self._compressors[key] = compressor(self.compression, shapes)
        return self._compressors[key]


def compressor(name: Compression, shapes: Sequence[Any] = ()) -> Compressor:
    """The compressor for a value of `--compression`, except "none"."""
    if name == "bf16":
        return Bfloat16()
    return Float16() if name == "fp16" else PowerSGD(shapes=shapes or None)


def address_towards(host: str, port: int) -> str:
    """The local address that the kernel uses to reach `host`. Sends nothing: connecting a UDP socket only selects the
    route."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port or 1))
        return str(probe.getsockname()[0])
