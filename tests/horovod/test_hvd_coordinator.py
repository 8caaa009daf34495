"""Rank 0's table, without workers: what is ready, what is cached, and what becomes of bits that are under way."""

from __future__ import annotations

import random

import pytest

from paceline.horovod.engine.coordinator import Coordinator
from paceline.horovod.engine.execution import Job, Known, fuse, split_rows
from paceline.horovod.engine.messages import (
    ALLGATHER,
    ALLREDUCE,
    Agreed,
    Ready,
    Request,
    bits_from_bytes,
    bits_to_bytes,
    slots_of,
)


def request(name: str, *shape: int, kind: str = ALLREDUCE, dtype: str = "float32") -> Request:
    return Request(name, kind, ((dtype, shape),), repeats=True)


class Rank:
    """Keeps a cache as a rank does."""

    def __init__(self, coordinator: Coordinator, rank: int) -> None:
        self.coordinator, self.rank, self.heard = coordinator, rank, 0
        self.cache: dict[str, tuple[int, Request]] = {}
        self.names: dict[int, str] = {}

    def submit(self, *requests: Request) -> int:
        """Returns how many were bits."""
        bits, new = 0, []
        for each in requests:
            known = self.cache.get(each.name)
            if known is not None and known[1] == each:
                bits |= 1 << known[0]
            else:
                new.append(each)
        self.coordinator.accept(self.rank, Ready(bits_to_bytes(bits), new, self.heard))
        return bits.bit_count()


def decide(
    coordinator: Coordinator, ranks: list[Rank], sent: dict[int, dict[str, Request]], hear: set[int]
) -> list[str]:
    """One verdict; the ranks in `hear` learn of it. Returns the names that are ready."""
    verdict = coordinator.decide()
    if verdict is None:
        return []
    ready = [ranks[0].names[slot] for slot in slots_of(bits_from_bytes(verdict.bits))]
    for rank in ranks:
        for slot in verdict.evicted:
            rank.cache.pop(rank.names.pop(slot), None)
        for agreed in verdict.agreed:
            if agreed.slot >= 0:
                rank.names[agreed.slot] = agreed.request.name
                rank.cache[agreed.request.name] = agreed.slot, sent[rank.rank][agreed.request.name]
        if rank.rank in hear:
            rank.heard = verdict.number
    return ready + [agreed.request.name for agreed in verdict.agreed]


@pytest.mark.parametrize("capacity", [0, 1, 3, 8, 100])
@pytest.mark.parametrize("seed", range(4))
def test_every_operation_is_ready_once_whatever_the_order(seed: int, capacity: int) -> None:
    chance = random.Random(seed)
    coordinator = Coordinator(3, capacity)
    ranks = [Rank(coordinator, rank) for rank in range(3)]
    for _ in range(30):
        # Each rank has the names once, with shapes that change from time to time, on one rank of a gather also alone.
        names = chance.sample("abcdefghij", 6)
        sizes = {name: chance.choice([1, 1, 1, 2]) for name in names}
        todo: dict[int, list[Request]] = {}
        for rank in range(3):
            todo[rank] = [request(name, sizes[name]) for name in names]
            todo[rank].append(request("gather", chance.choice([1, 2]), kind=ALLGATHER))
            chance.shuffle(todo[rank])
        sent = {rank: {each.name: each for each in todo[rank]} for rank in range(3)}
        ready: list[str] = []
        while any(todo.values()):
            rank = chance.choice([rank for rank in todo if todo[rank]])
            count = chance.randint(1, len(todo[rank]))
            ranks[rank].submit(*todo[rank][:count])
            del todo[rank][:count]
            if chance.random() < 0.7:
                ready += decide(coordinator, ranks, sent, set(chance.sample(range(3), chance.randint(0, 3))))
        ready += decide(coordinator, ranks, sent, {0, 1, 2})
        assert sorted(ready) == sorted([*names, "gather"])
        assert not coordinator.has_pending


def test_what_repeats_is_a_bit() -> None:
    coordinator = Coordinator(2, 10)
    ranks = [Rank(coordinator, rank) for rank in range(2)]
    requests = [request(name, 3) for name in "abc"]
    sent = {rank: {each.name: each for each in requests} for rank in range(2)}
    assert [rank.submit(*requests) for rank in ranks] == [0, 0]
    decide(coordinator, ranks, sent, {0, 1})
    assert [rank.submit(*requests) for rank in ranks] == [3, 3]
    assert decide(coordinator, ranks, sent, {0, 1}) == ["a", "b", "c"]
    unnamed = Request("x", ALLREDUCE, (("float32", (3,)),))
    for rank in range(2):
        coordinator.accept(rank, Ready(b"", [unnamed], 2))
    verdict = coordinator.decide()
    assert verdict is not None
    assert verdict.agreed[0].slot == -1, "a name that cannot come again takes no slot"


def test_fusion_keeps_to_the_threshold_and_to_what_is_alike() -> None:
    jobs = [Job(Known(Agreed(request(f"f{i}", 10))), None) for i in range(5)]
    jobs.insert(2, Job(Known(Agreed(request("d", 10, dtype="float64"))), None))
    names = [[job.known.request.name for job in batch] for batch in fuse(jobs, 80)]
    assert names == [["f0", "f1"], ["d"], ["f2", "f3"], ["f4"]]
    assert len(fuse(jobs, 1 << 20)) == 2
    assert len(fuse(jobs, 0)) == 6


def test_rows_are_split_as_horovod_does() -> None:
    assert split_rows(7, 3) == [3, 2, 2]
    assert split_rows(1, 3) == [1, 0, 0]
