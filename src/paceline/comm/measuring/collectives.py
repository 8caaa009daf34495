"""Measures each collective at each size with every backend and algorithm, and a plain memory copy for comparison.

The size is that of the full tensor: the result of an all-reduce, broadcast or all-gather on each worker, and the input
of a reduce-scatter or all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from paceline.comm.hosts import HostsChannel
from paceline.comm.measuring.plan import FLOAT, Collective, MeasuringPlan, algorithms, elements
from paceline.comm.measuring.rounds import Contender, Together, time_contenders
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.reductions import Reductions
from paceline.comm.network import algorithms as network
from paceline.comm.network.gloo import LOOPBACK, gloo_group
from paceline.comm.network.gloo_wire import connect
from paceline.wire.link import within

Ways = dict[str, Contender]  # by algorithm


def measure(
    plan: MeasuringPlan, engine: Together, store: Any, *, hosts: Sequence[int] = (), address: str = LOOPBACK
) -> Iterator[Collective]:
    """Every worker iterates it to the end. The reports are the same on all workers. `hosts`: the number of each
    worker's host, if there are several. `address`: of this host."""
    backends = {name: BACKENDS[name](store, engine.rank, engine.world, hosts, address) for name in plan.backends}
    for op in plan.ops:
        for size in plan.sizes:
            yield from _measure(op, size, backends, engine, plan)


def _measure(
    op: str, size: int, backends: dict[str, _Backend], engine: Together, plan: MeasuringPlan
) -> Iterator[Collective]:
    numel = elements(size, engine.world)
    ways = {
        (name, way): contender
        for name, backend in backends.items()
        for way, contender in backend.prepare(op, numel).items()
    }
    if not ways:
        return
    source, target = torch.zeros(numel).fill_(1.0), torch.zeros(numel).fill_(1.0)
    contenders = [Contender(lambda: target.copy_(source)), *ways.values()]
    copy, *times = time_contenders(contenders, engine, rounds=plan.rounds, seconds=plan.seconds)
    for (backend, algorithm), seconds in zip(ways, times, strict=True):
        yield Collective(
            op=op,
            backend=backend,
            algorithm=algorithm,
            workers=engine.world,
            bytes=numel * FLOAT,
            seconds=seconds,
            copy=copy,
        )


class _Backend:
    """Builds contenders. Tensors hold zeros, so that repeated sums do not overflow. The zeros are written explicitly,
    so that the kernel maps real memory."""

    def __init__(self, store: Any, rank: int, world: int, hosts: Sequence[int] = (), address: str = LOOPBACK) -> None:
        self.rank, self.world, self.device = rank, world, torch.device("cpu")
        self.hosts, self.address = hosts, address
        self.open(store)

    def open(self, store: Any) -> None:
        """Connects the workers."""
        raise NotImplementedError

    def prepare(self, op: str, numel: int) -> Ways:
        raise NotImplementedError

    def zeros(self, numel: int) -> torch.Tensor:
        return torch.ones(numel, device=self.device).zero_()


class Memory(_Backend):
    """Paceline's shared-memory collectives, between workers of one host."""

    def open(self, store: Any) -> None:
        self._engine = MemoryEngine(within(store, "measuring/rows"), self.rank, self.world)
        self._sums = Reductions(within(store, "measuring/sums"), self.rank, self.world)

    def prepare(self, op: str, numel: int) -> Ways:
        made = {"copied": Contender(self._copied(op, numel))}
        if "in place" in algorithms(op, "memory"):
            made["in place"] = Contender(self._in_place(numel))
        return made

    def _copied(self, op: str, numel: int) -> Callable[[], object]:
        whole, part = self.zeros(numel), numel // self.world
        engine = self._engine
        if op == "all_reduce":
            return partial(engine.all_reduce, whole)
        if op == "broadcast":
            return partial(engine.broadcast, whole, 0)
        if op == "all_gather":
            return partial(engine.all_gather, self.zeros(part), whole.split(part))
        if op == "reduce_scatter":
            return partial(engine.reduce_scatter, whole, self.zeros(part), [part] * self.world)
        return partial(engine.all_to_all, whole.split(part), self.zeros(numel).split(part))

    def _in_place(self, numel: int) -> Callable[[], object]:
        bucket = self._sums.allocate(numel, torch.float32)
        bucket.flat.fill_(1.0).zero_()
        return lambda: self._sums.finish(self._sums.start(bucket))


class Torch(_Backend):
    """torch's Gloo process group."""

    def open(self, store: Any) -> None:
        self._group = self._make(store)

    def _make(self, store: Any) -> Any:
        return gloo_group(within(store, "measuring/gloo"), self.rank, self.world, address=self.address)

    def prepare(self, op: str, numel: int) -> Ways:
        call = self._call(op, numel)
        return {"its own": Contender(lambda: call().wait(), self._settle)}

    def _settle(self) -> None:
        pass

    def _call(self, op: str, numel: int) -> Callable[[], Any]:
        whole, group = self.zeros(numel), self._group
        if op == "all_reduce":
            return partial(group.allreduce, [whole], dist.AllreduceOptions())
        if op == "broadcast":
            return partial(group.broadcast, [whole], dist.BroadcastOptions())
        if op == "all_gather":
            return partial(group._allgather_base, whole, self.zeros(numel // self.world))
        if op == "reduce_scatter":
            return partial(group._reduce_scatter_base, self.zeros(numel // self.world), whole)
        return partial(group.alltoall_base, self.zeros(numel), whole, [], [])


class Nccl(Torch):
    """torch's NCCL process group, one GPU per worker: each worker uses the first GPU that the worker sees."""

    def _make(self, store: Any) -> Any:
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        return dist.ProcessGroupNCCL(within(store, "measuring/nccl"), self.rank, self.world)  # type: ignore[call-arg]

    def _settle(self) -> None:
        torch.cuda.synchronize(self.device)


class Network(_Backend):
    """Paceline's network all-reduce, as if each worker were a host: on one host over the loopback interface."""

    def open(self, store: Any) -> None:
        self._wire = connect(store, "measuring", self.rank, self.world, address=self.address)

    def prepare(self, op: str, numel: int) -> Ways:
        names = algorithms(op, "network")
        flat = self.zeros(numel) if names else torch.empty(0)
        return {name: Contender(partial(network.all_reduce, flat, self._wire, algorithm=name)) for name in names}


class Hosts(_Backend):
    """The all-reduce of training on several hosts: within each host through shared memory, then between the hosts."""

    def open(self, store: Any) -> None:
        names = [str(host) for host in self.hosts]
        self._channel = HostsChannel(within(store, "measuring/hosts"), self.rank, names, address=self.address)

    def prepare(self, op: str, numel: int) -> Ways:
        if not algorithms(op, "hosts"):
            return {}
        flat, channel = self.zeros(numel), self._channel
        return {"its own": Contender(lambda: channel.finish(channel.start(flat, None, "measuring")))}


BACKENDS: dict[str, type[_Backend]] = {
    "memory": Memory,
    "gloo": Torch,
    "nccl": Nccl,
    "network": Network,
    "hosts": Hosts,
}
