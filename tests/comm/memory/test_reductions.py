"""Buckets that are summed where they lie: in any dtype and size, however many are under way."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pool import alone
from torch._C._distributed_c10d import PrefixStore

from paceline.comm.group import Group
from paceline.comm.memory import reductions
from paceline.comm.memory.reductions import OPEN, Reductions
from paceline.errors import PartedError

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SIZES = (0, 1, 2, 3, 63, 64, 65, 1000)
_made: dict[str, Reductions] = {}  # of this worker


def sums_of(group: Group, name: str = "shared by tests") -> Reductions:
    reductions.CHUNK = 256  # of this worker: many chunks a bucket
    if name not in _made:
        _made[name] = Reductions(PrefixStore(name, group._store), group.rank, group.world)
    return _made[name]


def brought(seed: int, rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 10 + rank)
    return torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)


def is_sum(flat: torch.Tensor, seed: int, world: int) -> bool:
    """Against the sum in float64, to what rounding once (halves) or at every addition may change."""
    whole = torch.stack([brought(seed, rank, flat.numel(), flat.dtype).double() for rank in range(world)])
    roundings = 1 if flat.dtype in reductions.HALVES else world
    allowed = roundings * torch.finfo(flat.dtype).eps * (whole.abs().sum(0) if roundings > 1 else whole.sum(0).abs())
    return bool(((flat.double() - whole.sum(0)).abs() <= allowed + 1e-6 * (roundings == 1)).all())


def bits(flat: torch.Tensor) -> list[int]:
    return flat.view(torch.uint8).tolist()


# -- one after the other -----------------------------------------------------------------------------------------------


def summed(group: Group, numel: int, dtype: torch.dtype) -> tuple[bool, list[int]]:
    sums = sums_of(group)
    bucket = sums.allocate(numel, dtype)
    memory = bucket.flat.data_ptr()
    for seed in range(3):
        bucket.flat.copy_(brought(seed, group.rank, numel, dtype))
        sums.finish(sums.start(bucket))
        assert is_sum(bucket.flat, seed, group.world)
    return bucket.flat.data_ptr() == memory, bits(bucket.flat)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_bucket_is_summed_in_place_to_the_same_bits(pool: Any, world: int, dtype: torch.dtype) -> None:
    for numel in SIZES:
        found = pool(world).run(summed, numel, dtype)
        assert found == [(True, found[0][1])] * world


def halves_that_would_stick(group: Group, dtype: torch.dtype) -> bool:
    """Ones that are lost when they are added one by one to a large number of half the precision."""
    large = 2.0 / torch.finfo(dtype).eps
    bucket = sums_of(group).allocate(group.world * 8, dtype)
    bucket.flat.fill_(1.0)
    if group.rank == 0:
        bucket.flat.fill_(large)
    sums_of(group).finish(sums_of(group).start(bucket))
    return bool((bucket.flat.float() == large + 4.0).all())


@pytest.mark.parametrize("dtype", reductions.HALVES, ids=str)
def test_halves_are_added_in_single_precision(pool: Any, dtype: torch.dtype) -> None:
    assert pool(5).run(halves_that_would_stick, dtype) == [True] * 5


# -- many at once ------------------------------------------------------------------------------------------------------


def played(group: Group, turns: list[tuple[int, torch.dtype, bool]], seed: int) -> list[str]:
    """Starts all; finishes in an order of this worker's own, and looks at moments of its own. Some workers renew."""
    rng, sums = random.Random(seed * 10 + group.rank), sums_of(group)
    buckets = [sums.allocate(numel, dtype) for numel, dtype, _ in turns]
    wrong = []
    for turn in range(2):
        begun = []
        for index, (bucket, (numel, dtype, renews)) in enumerate(zip(buckets, turns, strict=True)):
            if renews and turn and index % group.world == group.rank:
                bucket.renew()
            bucket.flat.copy_(brought(seed + index + turn, group.rank, numel, dtype))
            begun.append(sums.start(bucket, f"bucket {index}"))
            if rng.random() < 0.5:
                sums.progress()
        order = list(range(len(turns)))
        rng.shuffle(order)
        for index in order:
            sums.finish(begun[index])
            if not is_sum(buckets[index].flat, seed + index + turn, group.world):
                wrong.append(f"turn {turn}, bucket {index}: {buckets[index].flat.tolist()}")
            if rng.random() < 0.3:
                sums.progress()
    return wrong


TURNS = st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from(FLOATS), st.booleans()), min_size=1, max_size=12)


@given(turns=TURNS, seed=st.integers(0, 1000), world=st.sampled_from([2, 3, 4]))
def test_buckets_are_finished_in_any_order_and_moved_by_anybody(pool: Any, turns: Any, seed: int, world: int) -> None:
    assert pool(world).run(played, turns, seed) == [[]] * world


def test_more_may_be_under_way_than_there_is_room_for(pool: Any) -> None:
    turns = [(index % 7, torch.float32, index % 5 == 0) for index in range(3 * OPEN)]
    assert pool(3).run(played, turns, 7) == [[]] * 3


def far_ahead(group: Group) -> bool:
    """One worker starts all that it can before the other starts its first."""
    sums = sums_of(group, "far ahead")
    buckets = [sums.allocate(5, torch.float32) for _ in range(OPEN // 2)]
    if group.rank == 1:
        group.gather_objects("the other has started all", "a test")
    begun = []
    for index, bucket in enumerate(buckets):
        bucket.flat.fill_(float(index))
        begun.append(sums.start(bucket))
        assert group.rank or not begun[-1].reduced
    if group.rank == 0:
        group.gather_objects("started", "a test")
    for each in reversed(begun):
        sums.finish(each)
    return all(bool((bucket.flat == 2.0 * index).all()) for index, bucket in enumerate(buckets))


def test_starting_does_not_wait_for_the_others(pool: Any) -> None:
    assert pool(2).run(far_ahead) == [True, True]


# -- memory that goes before its time ----------------------------------------------------------------------------------


def dropped(group: Group) -> bool:
    """A worker drops a bucket, or takes other memory for it, while the other has not opened it yet."""
    sums = sums_of(group, "dropped early")
    first, second, last = (sums.allocate(100, torch.float32) for _ in range(3))
    for bucket in (first, second, last):
        bucket.flat.fill_(group.rank + 1.0)
    old = second.flat
    begun = [sums.start(bucket) for bucket in (first, second, last)]
    group.gather_objects("all have started", "a test")
    if group.rank == 0:
        second.renew()
        sums.progress()
        del first, second, begun[:2], bucket
        others = [sums.allocate(100, torch.float32) for _ in range(4)]  # would be given the free descriptors
    group.gather_objects("rank 0 has let go", "a test")
    sums.finish(begun[-1])
    untouched = group.rank == 1 or all(bool((each.flat == 0.0).all()) for each in others)
    return untouched and bool((last.flat == 3.0).all() and (old == 3.0).all())


def test_memory_is_kept_until_all_have_opened_it(pool: Any) -> None:
    assert pool(2).run(dropped) == [True, True]


# -- workers that part -------------------------------------------------------------------------------------------------


def different(group: Group, what: str) -> str:
    sums = sums_of(group)
    sizes, dtypes = [10, 10], [torch.float32, torch.float32]
    if what == "size" and group.rank:
        sizes[0] = 11
    if what == "dtype" and group.rank:
        dtypes[0] = torch.int32
    buckets = [sums.allocate(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    if what == "order" and group.rank:
        buckets.reverse()
    begun = [sums.start(bucket, "the gradient of a.weight") for bucket in buckets]
    with pytest.raises(PartedError) as caught:
        sums.finish(begun[0])
    with pytest.raises(PartedError):
        sums.finish(begun[1])
    return str(caught.value)


@pytest.mark.parametrize("what", ["size", "dtype", "order"])
def test_other_buckets_on_other_workers_are_told_with_both_places(what: str) -> None:
    with alone(3) as pool:
        for text in pool.run(different, what):
            assert len(re.findall(r"worker \d: the gradient of a.weight: bucket \d+ of 1[01] \w+", text)) == 3
            assert len(re.findall(r"test_reductions\.py:\d+", text)) == 3
