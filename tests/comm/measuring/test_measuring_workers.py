"""What workers measure between them: every contender does what it is called, and reports come out alike on all."""

from __future__ import annotations

import time

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from paceline.comm.group import Group
from paceline.comm.measuring import collectives, pairs
from paceline.comm.measuring.plan import OPS, Collective, MeasuringPlan, Pair, algorithms, elements, expected
from paceline.comm.measuring.rounds import Contender, time_contenders
from paceline.comm.memory.engine import MemoryEngine

PLAN = MeasuringPlan(
    pair_bytes=1 << 12,
    ops=OPS,
    sizes=(1 << 10, 100_000),
    backends=("memory", "gloo", "network"),
    rounds=3,
    seconds=0.0,
)


def measure(group: Group, name: str) -> list[Pair | Collective]:
    store = PrefixStore(name, group._store)
    engine = MemoryEngine(PrefixStore("meeting", store), group.rank, group.world)
    return [*pairs.measure(PLAN, engine, store), *collectives.measure(PLAN, engine, store)]


@pytest.mark.parametrize("world", [2, 3])
def test_every_worker_hears_the_same_of_everything_that_was_asked_for(pool, world):
    reports, *others = pool(world).run(measure, f"measuring{world}")
    assert all(other == reports for other in others)
    assert len(reports) == expected(PLAN, world, 0)
    found = [report for report in reports if isinstance(report, Collective)]
    assert {(each.op, each.backend, each.algorithm) for each in found} == {
        (op, backend, way) for op in OPS for backend in PLAN.backends for way in algorithms(op, backend)
    }
    for each in found:
        assert each.bytes in {4 * elements(size, world) for size in PLAN.sizes}
        assert each.workers == world
        assert len(each.seconds) == len(each.copy) == 3
        assert min(each.seconds) > 0 < min(each.copy)
    ends = {(each.a, each.b, each.backend) for each in reports if isinstance(each, Pair)}
    assert ends == {(a, b, way) for b in range(world) for a in range(b) for way in ("memory", "gloo")}


def results(group: Group, name: str) -> dict[tuple[str, str, str], bool]:
    """Whether what each contender leaves is what the collective is for: tensors are filled before, and looked at
    after."""
    store = PrefixStore(name, group._store)
    rank, world, numel = group.rank, group.world, 12 * group.world
    part = numel // world
    right = {}
    for backend in ("memory", "gloo", "network"):
        made: list[torch.Tensor] = []

        class Watched(collectives.BACKENDS[backend]):  # type: ignore[misc]
            def zeros(self, numel: int, made: list[torch.Tensor] = made) -> torch.Tensor:
                made.append(super().zeros(numel))
                return made[-1]

        it = Watched(store, rank, world)
        for op in OPS:
            for way in algorithms(op, backend):
                made.clear()
                call = it.prepare(op, numel)[way].call
                if way == "in place":
                    continue  # its memory is the bucket's own
                whole = next(each for each in made if each.numel() == numel)
                other = [each for each in made if each is not whole]
                if op == "all_gather":
                    other[0].fill_(rank + 1)
                else:
                    whole.copy_(torch.arange(numel) // part + 10.0 * rank)
                call()
                blocks = torch.arange(numel) // part
                every = float(sum(range(world)))
                wanted = {
                    "all_reduce": (whole, world * blocks + 10.0 * every),
                    "broadcast": (whole, blocks.float()),
                    "all_gather": (whole, blocks + 1.0),
                    "reduce_scatter": (other[0] if other else whole, torch.full((part,), world * rank + 10.0 * every)),
                    "all_to_all": (other[0] if other else whole, rank + 10.0 * blocks),
                }[op]
                right[op, backend, way] = torch.equal(wanted[0], wanted[1].float())
    return right


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_timed_is_the_collective_itself(pool, world):
    for right in pool(world).run(results, f"results{world}"):
        assert set(right.values()) == {True}, right


def sum_in_place(group: Group) -> bool:
    backend = collectives.Memory(PrefixStore("in place", group._store), group.rank, group.world)
    made = []
    allocate = backend._sums.allocate
    backend._sums.allocate = lambda *args: made.append(allocate(*args)) or made[-1]  # type: ignore
    call = backend.prepare("all_reduce", 1000)["in place"].call
    made[0].flat.fill_(group.rank + 1)
    call()
    return torch.equal(made[0].flat, torch.full((1000,), float(sum(range(1, group.world + 1)))))


def test_a_bucket_is_summed_where_it_lies(pool):
    assert pool(2).run(sum_in_place) == [True, True]


def slowest(group: Group) -> list[list[float]]:
    engine = MemoryEngine(PrefixStore("slowest", group._store), group.rank, group.world)
    one_is_slow = Contender(lambda: time.sleep(0.02 * group.rank))
    settles_late = Contender(lambda: None, lambda: time.sleep(0.03))
    return time_contenders([one_is_slow, settles_late], engine, rounds=4, seconds=60.0)


def test_a_round_takes_as_long_as_its_slowest_worker(pool):
    first, second = pool(2).run(slowest)
    assert first == second
    waits, settles = first
    assert len(waits) == len(settles) == 4
    assert min(waits) >= 0.02
    assert min(settles) >= 0.03
