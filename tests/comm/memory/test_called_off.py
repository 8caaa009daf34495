"""A worker that has failed answers whatever collective its peers call, and all go on in step."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from paceline.comm.ending import CalledOff
from paceline.comm.group import Group
from paceline.comm.memory.engine import MemoryEngine


def _all_reduce(engine: MemoryEngine, numel: int) -> None:
    engine.all_reduce(torch.ones(numel))


COLLECTIVES: dict[str, Any] = {
    "small sum": lambda engine: _all_reduce(engine, 10),
    "large sum": lambda engine: _all_reduce(engine, 3_000_000),
    "gather": lambda engine: engine.all_gather(torch.ones(3), [torch.ones(3) for _ in range(engine.world)]),
    "large gather": lambda e: e.all_gather(torch.ones(400_000), [torch.ones(400_000) for _ in range(e.world)]),
    "broadcast": lambda engine: engine.broadcast(torch.ones(10), 0),
    "barrier": lambda engine: engine.barrier(),
}


def played(group: Group, seed: int) -> list[Any]:
    """At each turn some workers fail, and the others call something, not all of them the same."""
    engine = MemoryEngine(PrefixStore(f"off{seed}", group._store), group.rank, group.world)
    dice, said = random.Random(seed), list[Any]()
    for _ in range(60):
        failed = {rank for rank in range(group.world) if dice.random() < 0.4} or {dice.randrange(group.world)}
        called = [dice.choice(list(COLLECTIVES)) for _ in range(group.world)]
        if dice.random() < 0.7:
            called = [called[0]] * group.world
        if group.rank in failed:
            engine.call_off()
        else:
            with pytest.raises(CalledOff):
                COLLECTIVES[called[group.rank]](engine)
        engine.begin_again()
        for numel in (5, 200_000)[: dice.randrange(3)]:
            total = torch.full((numel,), float(group.rank + 1))
            engine.all_reduce(total)
            said.append(total.unique().tolist())
    return said


@pytest.mark.parametrize("world", [2, 3])
def test_whatever_is_called_is_called_off_and_what_follows_is_right(pool: Any, world: int) -> None:
    for said in pool(world).run(played, 1):
        assert len(said) > 20
        assert all(sums == [sum(range(1, world + 1))] for sums in said)
