"""Sums in rows: right whoever is late, from call to call, and between other calls."""

from __future__ import annotations

import random
import time

import pytest
import torch
from pool import alone
from torch._C._distributed_c10d import PrefixStore
from worlds import make_tiny

from paceline.comm.group import Group
from paceline.comm.memory import pipelined_allreduce
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.shm_rendezvous import Meeting

PIECE = 1024  # bytes, of a tiny one
CALLS = 60


def dawdle(rank: int) -> None:
    """This worker is late now and then, after its waits and before its signals: others run ahead as far as they may."""
    chance = random.Random(rank)
    plain_wait, plain_signal = Meeting.wait, Meeting.signal

    def wait(meeting: Meeting, peer: int) -> None:
        plain_wait(meeting, peer)
        time.sleep(chance.choice((0, 0, 0, 2e-4)))

    def signal(meeting: Meeting) -> None:
        time.sleep(chance.choice((0, 0, 0, 2e-4)))
        plain_signal(meeting)

    Meeting.wait, Meeting.signal = wait, signal  # type: ignore[method-assign]


def sum_up(group: Group, dtype: torch.dtype) -> int:
    """How many of the calls gave a wrong number."""
    make_tiny()
    dawdle(group.rank)
    engine = MemoryEngine(PrefixStore("relay", group._store), group.rank, group.world)
    row = PIECE * group.world // dtype.itemsize
    chance, wrong = random.Random(0), 0  # the same calls on every worker
    for call in range(CALLS):
        size = chance.choice((200, row - 1, row, row + 1, 2 * row, 3 * row + 7, 5 * row, 9 * row + 11))
        plain = torch.arange(size) % 7 + call % 5
        tensor = (plain * (group.rank + 1)).to(dtype)
        engine.all_reduce(tensor)
        wrong += not torch.equal(tensor, (plain * (group.world * (group.world + 1) // 2)).to(dtype))
        if call % 3 == 0:
            told = torch.full((chance.randrange(1, 3000),), float(group.rank == call % group.world))
            engine.broadcast(told, call % group.world)
            wrong += not bool((told == 1).all())
    return wrong


@pytest.mark.parametrize(("world", "dtype"), [(2, torch.float32), (3, torch.int64), (4, torch.float64)])
def test_sums_are_right_whoever_is_late(world: int, dtype: torch.dtype) -> None:
    with alone(world) as pool:
        assert pool.run(sum_up, dtype) == [0] * world


def test_the_memory_for_it_does_not_grow_with_the_square_of_the_workers() -> None:
    assert [pipelined_allreduce.space_for(world) >> 20 for world in (2, 4, 8, 64)] == [6, 24, 48, 384]
