"""Process sets: some of the ranks run operations among themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hvd_worlds import fresh

import paceline.horovod.torch as hvd


def dynamic_sets(rank: int, size: int) -> None:
    outer = hvd.add_process_set([0, 2])
    inner = hvd.add_process_set(hvd.ProcessSet([1]))
    assert (outer.process_set_id, inner.process_set_id) == (1, 2)
    assert outer.included() == (rank != 1)
    assert outer.size() == 2
    mine = inner if rank == 1 else outer
    members = [1] if rank == 1 else [0, 2]
    assert mine.rank() == members.index(rank)
    for _ in range(3):
        # The same name in both sets and in all ranks' set, at the same time.
        handles = [
            hvd.allreduce_async(torch.tensor([float(rank)]), name="same", op=hvd.Sum, process_set=which)
            for which in ((mine, hvd.global_process_set) if rank else (hvd.global_process_set, mine))
        ]
        results = [float(hvd.synchronize(handle)) for handle in handles]
        assert sorted(results) == sorted([float(sum(members)), 3.0])
    assert hvd.allgather(torch.tensor([rank]), process_set=mine).tolist() == members
    assert int(hvd.broadcast(torch.tensor([rank]), members[-1], process_set=mine)) == members[-1]
    assert hvd.alltoall(torch.arange(len(members)), process_set=mine).tolist() == [members.index(rank)] * len(members)
    assert hvd.reducescatter(torch.ones(2), op=hvd.Sum, process_set=mine).sum() == 2 if rank != 1 else True
    assert hvd.broadcast_object(rank, members[0], process_set=mine) == members[0]
    hvd.barrier(process_set=mine)
    if rank == 1:
        with pytest.raises(ValueError, match="does not include this process"):
            hvd.allreduce(torch.ones(1), process_set=outer)
        with pytest.raises(ValueError, match="not part of"):
            outer.rank()
    hvd.barrier()
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([2, 0])
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(torch.ones(1), op=hvd.Adasum, process_set=mine)
    assert hvd.remove_process_set(outer)
    assert not hvd.remove_process_set(outer)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert outer.process_set_id is None
    assert outer.size() is None
    with pytest.raises(ValueError, match="registered"):
        hvd.allreduce(torch.ones(1), process_set=outer)
    assert hvd.add_process_set([0, 2]).process_set_id == 3
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == size


def in_opposite_orders(rank: int, size: int) -> None:
    """Ranks 0 and 1 use two sets that overlap, in opposite orders."""
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])]
    mine = [each for each in (sets if rank != 1 else sets[::-1]) if each.included()]
    handles = [hvd.allreduce_async(torch.ones(1), name="x", op=hvd.Sum, process_set=each) for each in mine]
    assert [float(hvd.synchronize(handle)) for handle in handles] == [2.0] * len(mine)


def train_a_part(rank: int, size: int) -> float:
    pair = hvd.add_process_set([1, 0])
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=pair)
    (weight * (rank + 1)).sum().backward()
    optimizer.step()
    hvd.remove_process_set(pair)
    return weight.item()


def test_sets_that_are_added_and_removed() -> None:
    with fresh(3, HOROVOD_DYNAMIC_PROCESS_SETS="1") as ranks:
        assert ranks.run(train_a_part) == [-1.5, -1.5, -3.0]
        ranks.run(renew)
        ranks.run(dynamic_sets)
        ranks.run(renew)
        ranks.run(in_opposite_orders)


def renew(rank: int, size: int) -> None:
    """Horovod anew: process sets are numbered from 1."""
    hvd.barrier()
    hvd.shutdown()
    hvd.init()


def static_sets(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(ValueError, match="duplicate"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
    assert not hvd.is_initialized()
    first, second = hvd.ProcessSet([0]), hvd.ProcessSet(range(1, size))
    hvd.init(process_sets=[first, second])
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert hvd.global_process_set.ranks == list(range(size))
    mine = second if rank else first
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine)) == (size - 1 if rank else 1)
    hvd.barrier()
    hvd.shutdown()
    hvd.init([1, 0])  # the ranks that take part, in another order
    assert (hvd.rank(), hvd.size()) == ((1 - rank, 2) if rank < 2 else (0, 1))
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == (2 if rank < 2 else 1)


def test_sets_that_are_given_to_init() -> None:
    with fresh(3) as ranks:
        ranks.run(static_sets)


def test_a_process_set_needs_ranks() -> None:
    for wrong in (7, ["a"], [0.5]):
        with pytest.raises(ValueError, match="list of process ranks"):
            hvd.ProcessSet(wrong)  # type: ignore[arg-type]
