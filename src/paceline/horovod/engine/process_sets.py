"""The process sets of this process: which ranks belong to each, and how their tensors move."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from paceline.comm.hosts import address_towards
from paceline.horovod.engine.exchange import Alone, Exchange, Staged, over_nccl, through_host
from paceline.horovod.engine.membership import Membership
from paceline.wire.link import within


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
