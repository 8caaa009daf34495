"""Moves tensors between the ranks of one process set: through shared memory, over Gloo, or over NCCL.

Every rank of the set makes the same calls in the same order, from its background thread. Tensors are flat and
contiguous, of one dtype. A peer that is gone makes every call raise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
import torch.distributed as dist

from paceline.comm.hosts import address_towards
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.flats import bytes_of
from paceline.comm.memory.operations import REDUCTIONS
from paceline.comm.network.gloo import gloo_group
from paceline.horovod.engine.membership import Membership
from paceline.horovod.engine.messages import AVERAGE, MAX, MIN, PRODUCT, SUM
from paceline.wire.link import within

REDUCE_OPS: dict[int, Any] = {
    AVERAGE: dist.ReduceOp.SUM,
    SUM: dist.ReduceOp.SUM,
    MIN: dist.ReduceOp.MIN,
    MAX: dist.ReduceOp.MAX,
    PRODUCT: dist.ReduceOp.PRODUCT,
}
# The dtypes that both Gloo and NCCL can reduce.
REDUCED = {
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int32, torch.int64),
}


class Exchange(Protocol):
    """`rank` and `world` are of the process set."""

    rank: int
    world: int

    def all_reduce(self, flat: torch.Tensor, op: int) -> None:
        """Reduces in place."""

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        """Copies `own` of rank r into `into[r]`; sizes may differ."""

    def broadcast(self, flat: torch.Tensor, root: int) -> None:
        """In place. `root` is a rank of the set."""

    def all_to_all(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        """Copies `pieces[own rank]` of rank r into `into[r]`; sizes may differ."""

    def reduce_scatter(self, flat: torch.Tensor, own: torch.Tensor, counts: Sequence[int], op: int) -> None:
        """Writes this rank's part of the reduced `flat` to `own`; `counts[r]` is the length of rank r's part."""


class Alone:
    """A process set of one rank."""

    rank, world = 0, 1

    def all_reduce(self, flat: torch.Tensor, op: int) -> None:
        pass

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        into[0].copy_(own)

    def broadcast(self, flat: torch.Tensor, root: int) -> None:
        pass

    def all_to_all(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        into[0].copy_(pieces[0])

    def reduce_scatter(self, flat: torch.Tensor, own: torch.Tensor, counts: Sequence[int], op: int) -> None:
        own.copy_(flat)


class ThroughMemory:
    """Ranks of one host, in host memory."""

    def __init__(self, store: Any, rank: int, names: Sequence[int]) -> None:
        """`names` are the ranks in messages. Every rank of the set calls it; waits for all."""
        self.rank, self.world = rank, len(names)
        self._engine = MemoryEngine(within(store, "memory"), rank, len(names), names=list(names))
        self._engine.at(lambda: "a Horovod operation")

    def all_reduce(self, flat: torch.Tensor, op: int) -> None:
        self._engine.all_reduce(flat, REDUCTIONS[REDUCE_OPS[op]])

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        self._engine.all_gather(own, into)

    def broadcast(self, flat: torch.Tensor, root: int) -> None:
        self._engine.broadcast(flat, root)

    def all_to_all(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        self._engine.all_to_all(pieces, into)

    def reduce_scatter(self, flat: torch.Tensor, own: torch.Tensor, counts: Sequence[int], op: int) -> None:
        self._engine.reduce_scatter(flat, own, counts, REDUCTIONS[REDUCE_OPS[op]])


class OverGroup:
    """Ranks with a process group of torch: Gloo between hosts, NCCL between GPUs."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.world = group.rank(), group.size()

    def all_reduce(self, flat: torch.Tensor, op: int) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCE_OPS[op]
        if flat.dtype in REDUCED:
            self._group.allreduce([flat], options).wait()
            return
        wide = flat.to(torch.int32)  # bool and int16
        self._group.allreduce([wide], options).wait()
        flat.copy_(wide)

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        own, into = bytes_of(own), [bytes_of(piece) for piece in into]
        longest = max(piece.numel() for piece in into)
        if not longest:
            return
        padded = own if own.numel() == longest else own.new_zeros(longest)
        if padded is not own:
            padded[: own.numel()] = own
        whole = own.new_empty(self.world * longest)
        self._group._allgather_base(whole, padded).wait()
        for piece, row in zip(into, whole.view(self.world, longest), strict=True):
            piece.copy_(row[: piece.numel()])

    def broadcast(self, flat: torch.Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([bytes_of(flat)], options).wait()

    def all_to_all(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        pieces, into = [bytes_of(piece) for piece in pieces], [bytes_of(piece) for piece in into]
        out = into[0].new_empty(sum(piece.numel() for piece in into))
        sizes, sent = [piece.numel() for piece in into], [piece.numel() for piece in pieces]
        self._group.alltoall_base(out, torch.cat(list(pieces)), sizes, sent, dist.AllToAllOptions()).wait()
        for piece, part in zip(into, out.split(sizes), strict=True):
            piece.copy_(part)

    def reduce_scatter(self, flat: torch.Tensor, own: torch.Tensor, counts: Sequence[int], op: int) -> None:
        # Neither Gloo nor NCCL has parts of different lengths.
        self.all_reduce(flat := flat.clone(), op)
        start, end = list(pairwise(accumulate(counts, initial=0)))[self.rank]
        own.copy_(flat[start:end])


class Staged:
    """Tensors on GPUs that ranks share: they go through host memory."""

    def __init__(self, host: Exchange) -> None:
        self._host = host
        self.rank, self.world = host.rank, host.world

    def all_reduce(self, flat: torch.Tensor, op: int) -> None:
        self._host.all_reduce(copy := flat.cpu(), op)
        flat.copy_(copy)

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        copies = [piece.cpu() for piece in into]
        self._host.all_gather(own.cpu(), copies)
        for piece, copy in zip(into, copies, strict=True):
            piece.copy_(copy)

    def broadcast(self, flat: torch.Tensor, root: int) -> None:
        self._host.broadcast(copy := flat.cpu(), root)
        flat.copy_(copy)

    def all_to_all(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        copies = [piece.cpu() for piece in into]
        self._host.all_to_all([piece.cpu() for piece in pieces], copies)
        for piece, copy in zip(into, copies, strict=True):
            piece.copy_(copy)

    def reduce_scatter(self, flat: torch.Tensor, own: torch.Tensor, counts: Sequence[int], op: int) -> None:
        self._host.reduce_scatter(flat.cpu(), copy := own.cpu(), counts, op)
        own.copy_(copy)


def through_host(store: Any, rank: int, names: Sequence[int], *, one_host: bool, address: str | None) -> Exchange:
    """For tensors in host memory. Every rank of the set calls it; waits for all."""
    if one_host:
        return ThroughMemory(store, rank, names)
    return OverGroup(gloo_group(within(store, "gloo"), rank, len(names), address=address))


def over_nccl(store: Any, rank: int, names: Sequence[int]) -> Exchange:
    """For tensors on GPUs, if each rank has its own. NCCL connects at the first call."""
    group = dist.ProcessGroupNCCL(within(store, "nccl"), rank, len(names))  # type: ignore[call-arg]
    return OverGroup(group)


# -- process sets -----------------------------------------------------------------------------------------------------


class ProcessSets:
    """Number 0 is all ranks. Changed by the background thread only; any thread may read."""

    def __init__(self, store: Any, member: Membership) -> None:
        self._store, self._member = store, member
        self.ranks: dict[int, tuple[int, ...]] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._on_gpus: dict[int, Exchange] = {}

    def add(self, number: int, ranks: tuple[int, ...]) -> None:
        """Every rank calls it; the ranks of the set wait for each other."""
        if ranks == (self._member.rank,):
            self._exchanges[number] = Alone()
        elif self._member.rank in ranks:
            settings = self._member.settings
            address = None
            if not self._member.is_one_host:
                address = settings.address or address_towards(settings.store_host, settings.store_port)
            self._exchanges[number] = through_host(
                within(self._store, f"set{number}"),
                ranks.index(self._member.rank),
                ranks,
                one_host=self._member.is_one_host,
                address=address,
            )
        self.ranks[number] = ranks

    def remove(self, number: int) -> None:
        for table in (self.ranks, self._exchanges, self._on_gpus):
            table.pop(number, None)

    @property
    def memberships(self) -> Collection[int]:
        """The sets that include this rank."""
        return self._exchanges.keys()

    def has_member(self, number: int) -> bool:
        """Whether the set includes this rank."""
        return number in self._exchanges

    def exchange(self, number: int, device: str) -> Exchange:
        """The way for tensors on this kind of device. This rank is a member of the set."""
        host = self._exchanges[number]
        if device == "cpu" or host.world == 1:
            return host
        found = self._on_gpus.get(number)
        if found is None:
            found = self._on_gpus[number] = self._make_gpu_exchange(number, host)
        return found

    def _make_gpu_exchange(self, number: int, host: Exchange) -> Exchange:
        """NCCL refuses ranks that share a GPU: those go through host memory. Every rank of the set decides alike."""
        own = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid).encode()
        every = [torch.zeros(64, dtype=torch.uint8, device="cpu") for _ in range(host.world)]
        padded = torch.frombuffer(bytearray(own.ljust(64)[:64]), dtype=torch.uint8)
        host.all_gather(padded, every)
        if len({bytes(each.tolist()) for each in every}) < host.world or not torch.distributed.is_nccl_available():
            return Staged(host)
        return over_nccl(within(self._store, f"set{number}"), host.rank, self.ranks[number])
