"""The channel between GPUs, here over Gloo groups of host tensors (over NCCL: test_same_numbers_gpu.py), and broadcasts
of many tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pool import Pools

from paceline.comm import coalesced
from paceline.comm.channels import GpuChannel
from paceline.comm.group import Group
from paceline.comm.network.gloo import gloo_group
from paceline.wire.link import within

NAMES = iter(range(10**6))


def channel_of(group: Group) -> GpuChannel:
    store = group.store(f"test of gpus {next(NAMES)}")
    return GpuChannel(
        group.rank,
        group.world,
        lambda name: gloo_group(within(store, name), group.rank, group.world, address="127.0.0.1"),
    )


def use_all(group: Group) -> list[Any]:
    channel, mine = channel_of(group), torch.full((group.rank + 1, 2), float(group.rank))
    gathered = channel.gather(mine, range(1, group.world + 1))
    total, spread = torch.tensor([float(group.rank + 1)]), torch.tensor([group.rank + 5])
    channel.all_reduce(total)
    channel.broadcast(spread)
    return [gathered[:, 0].tolist(), total.item(), spread.item()]


def test_rows_sums_and_broadcasts(pool: Pools) -> None:
    assert pool(3).run(use_all) == [[[0.0, 1.0, 1.0, 2.0, 2.0, 2.0], 6.0, 5]] * 3


def use_in_other_order(group: Group) -> list[float]:
    """Rank 0 sends its bucket before the rows, rank 1 after them."""
    channel, bucket = channel_of(group), torch.ones(4) * (group.rank + 1)
    rows = torch.full((1, 1), float(group.rank))
    wait = channel.start(bucket) if group.rank == 0 else None
    gathered = channel.gather(rows, (1, 1))
    (wait or channel.start(bucket))()
    return [*gathered.flatten().tolist(), *bucket.tolist()]


def test_a_bucket_and_rows_may_be_sent_in_any_order(pool: Pools) -> None:
    assert pool(2).run(use_in_other_order) == [[0.0, 1.0, 3.0, 3.0, 3.0, 3.0]] * 2


def broadcast_many(group: Group, at_once: int) -> list[Any]:
    coalesced.AT_ONCE, before = at_once, coalesced.AT_ONCE
    started = group.pulse.collectives
    try:
        tensors = [
            torch.full((3, 2), float(group.rank)),
            torch.tensor(group.rank + 7),
            torch.full((2, 3), group.rank + 0.5).t(),
            torch.empty(0),
            torch.tensor([group.rank == 0] * 3),
            torch.full((5,), group.rank + 1.0, dtype=torch.bfloat16),
            torch.full((4,), float(group.rank + 2)),
        ]
        coalesced.broadcast_all(group, tensors, "tensors")
    finally:
        coalesced.AT_ONCE = before
    return [[tensor.flatten().tolist() for tensor in tensors], group.pulse.collectives - started]


@pytest.mark.parametrize(("at_once", "messages"), [(1 << 20, 4), (30, 6)])
def test_many_tensors_are_broadcast_in_few_messages(at_once: int, messages: int, pool: Pools) -> None:
    expected = [[0.0] * 6, [7], [0.5] * 6, [], [True] * 3, [1.0] * 5, [2.0] * 4]
    for values, sent in pool(2).run(broadcast_many, at_once):
        assert values == expected
        assert sent == messages
