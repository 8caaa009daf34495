"""`paceline` as a backend of torch.distributed: every collective, held against Gloo."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from collectives import COLLECTIVES, DTYPES, FLOATS, LAYOUTS, OPS, Call, Side, can, is_reduction
from hypothesis import given
from hypothesis import strategies as st
from worlds import SUBSETS, World, Worlds

ROWS = (0, 1, 2, 5, 40, 700)  # of three numbers: within a signal, within a slot, several slots
MATCH_BY_POSITION = tuple(range(len(SUBSETS)))
SAMPLE = 5  # a seed whose third of the calls has every value of every field, for each collective; the test checks


def differences(world: World, calls: list[Call]) -> list[str]:
    """Makes the calls on both backends, on `paceline` all begun before the first that is not waited for at once is."""
    begun, found = [], []
    for call in calls:
        if world.has(call.subset):
            side = Side(call, world.ours[call.subset], call.dtype, call.layout)
            begun.append((call, *COLLECTIVES[call.name](side)))
    waits = [work for call, work, _ in begun if call.later]
    random.Random(len(calls)).shuffle(waits)
    for work in waits:
        work.wait()
    for call, _, results in begun:
        for index, (ours, expected) in enumerate(zip(results, by_gloo(world, call), strict=True)):
            if ours.dtype is not expected.dtype or not torch.equal(ours, expected):
                found.append(f"{call}: tensor {index} is {ours.tolist()}, not {expected.tolist()}")
    return found


def by_gloo(world: World, call: Call) -> list[torch.Tensor]:
    """What Gloo makes of it. It has no int16, does not gather complex numbers, and averages integers in its own way."""
    average = call.op == "AVG"
    as_integers = call.dtype is torch.int16 or (call.dtype.is_complex and not is_reduction(call.name))
    dtype = torch.int32 if as_integers else call.dtype
    plain = dataclasses.replace(call, later=False, op="SUM" if average else call.op)
    group = world.gloo[call.subset]
    _, results = COLLECTIVES[call.name](Side(plain, group, dtype, "in a row"))
    if call.dtype is torch.bool:  # Gloo adds them up as bytes
        return [result.view(torch.uint8) != 0 for result in results]
    if average:
        size = dist.get_world_size(group)
        only = len(results) if call.name.startswith("all_reduce") or call.name == "reduce" else outputs_of(call.name)
        for result in results[len(results) - only :]:
            result.div_(size, rounding_mode=None if dtype.is_floating_point else "trunc")
    return [result.to(call.dtype) for result in results]


def outputs_of(name: str) -> int:
    """The last ones of what a reduce-scatter gives."""
    return 2 if name.endswith("coalesced") else 1


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_in_every_dtype_and_size_is_as_by_gloo(worlds: Worlds, name: str, share: int) -> None:
    """The default run makes a third of the calls, with every dtype, size, operation, group and layout among them."""
    calls = [
        Call(name, subset, dtype, rows, op, root=seed, layout=LAYOUTS[seed % 3], later=seed % 2 == 1, seed=seed)
        for seed, (subset, dtype, rows, op) in enumerate(
            (subset, dtype, rows, op)
            for dtype in DTYPES
            for op in (OPS if is_reduction(name) else ("SUM",))
            if can(name, dtype, op)
            for subset, rows in enumerate((700, 5, 200, 0, 3) if op == "SUM" else (41,))
        )
    ]
    made = random.Random(SAMPLE).sample(calls, len(calls) // share)
    for field in ("subset", "dtype", "rows", "op", "layout", "later"):
        assert {getattr(call, field) for call in made} == {getattr(call, field) for call in calls}, field
    assert worlds.run(differences, made) == [[]] * 4


@st.composite
def programs(draw: st.DrawFn) -> list[Call]:
    """Collectives on several groups at once, some not waited for until the end."""
    calls = []
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(sorted(COLLECTIVES)))
        dtype = draw(st.sampled_from(DTYPES))
        op = draw(st.sampled_from([op for op in OPS if can(name, dtype, op)]))
        calls.append(
            Call(
                name,
                draw(st.sampled_from(MATCH_BY_POSITION)),
                dtype,
                draw(st.sampled_from(ROWS)),
                op,
                draw(st.integers(0, 3)),
                draw(st.sampled_from(LAYOUTS)),
                draw(st.booleans()),
                draw(st.integers(0, 1 << 20)),
            )
        )
    return calls


@given(calls=programs())
def test_collectives_on_several_groups_interleaved_are_as_by_gloo(worlds: Worlds, calls: list[Call]) -> None:
    assert worlds.run(differences, calls) == [[]] * 4


# -- sums of real numbers ----------------------------------------------------------------------------------------------


def summed(world: World, dtype: torch.dtype, numel: int, op: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(numel * 10 + world.rank)
    tensor = torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)
    brought = tensor.clone()
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group=world.ours[0])
    return brought, tensor


@pytest.mark.parametrize("op", ["SUM", "AVG", "PRODUCT"])
@pytest.mark.parametrize("numel", [7, 5000])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_sum_has_the_same_bits_on_every_worker(worlds: Worlds, dtype: torch.dtype, numel: int, op: str) -> None:
    brought, found = zip(*worlds.run(summed, dtype, numel, op), strict=True)
    assert all(torch.equal(each.view(torch.uint8), found[0].view(torch.uint8)) for each in found)
    whole = torch.stack(brought).double()
    expected = {"SUM": whole.sum(0), "AVG": whole.mean(0), "PRODUCT": whole.prod(0)}[op]
    largest = whole.abs().sum(0).clamp(min=1).pow(4 if op == "PRODUCT" else 1)
    assert bool(((found[0].double() - expected).abs() <= 4 * torch.finfo(dtype).eps * largest).all())


def with_odd_numbers(world: World, numel: int) -> torch.Tensor:
    tensor = torch.arange(float(numel))
    tensor[world.rank :: 7] = float("nan")
    tensor[world.rank + 1 :: 11] = float("inf") if world.rank % 2 else float("-inf")
    dist.all_reduce(tensor, group=world.ours[0])
    return tensor


@pytest.mark.parametrize("numel", [50, 5000])
def test_infinities_and_nans_get_through(worlds: Worlds, numel: int) -> None:
    found = worlds.run(with_odd_numbers, numel)
    assert all(torch.equal(each.view(torch.uint8), found[0].view(torch.uint8)) for each in found)
    assert bool(found[0][:4].isnan().all())


def sparse(world: World, op: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank 3 brings nothing; others some places more than once."""
    places = torch.tensor([[0, world.rank, world.rank, 2]]) if world.rank < 3 else torch.empty(1, 0, dtype=torch.int64)
    numbers = torch.arange(1.0, 13.0).view(4, 3)[: places.shape[1]] + world.rank
    tensor = torch.sparse_coo_tensor(places, numbers, (5, 3), check_invariants=True)
    dense = tensor.to_dense()
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group=world.ours[0])
    dist.all_reduce(dense, getattr(dist.ReduceOp, op), group=world.gloo[0])
    return tensor.to_dense(), dense


@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_sparse_tensors_are_summed_as_dense_ones(worlds: Worlds, op: str) -> None:
    for found, expected in worlds.run(sparse, op):
        assert torch.equal(found, expected)


# -- what torch builds on collectives ----------------------------------------------------------------------------------


def moved_objects(world: World, backend: str) -> list[Any]:
    group = getattr(world, backend)[3]
    if not world.has(3):
        return []
    ranks, me = SUBSETS[3], {"rank": world.rank, "text": "x" * 1000 * world.rank}
    gathered: list[Any] = [None] * 3
    dist.all_gather_object(gathered, me, group=group)
    sent = [me, world.rank] if world.rank == ranks[1] else [None, None]
    dist.broadcast_object_list(sent, src=ranks[1], group=group)
    at_root: list[Any] | None = [None] * 3 if world.rank == ranks[2] else None
    dist.gather_object(me, at_root, dst=ranks[2], group=group)
    received: list[Any] = [None]
    dist.scatter_object_list(received, gathered if world.rank == ranks[0] else None, src=ranks[0], group=group)
    return [gathered, sent, at_root, received]


def test_objects_travel_as_by_gloo(worlds: Worlds) -> None:
    assert worlds.run(moved_objects, "ours") == worlds.run(moved_objects, "gloo")


def gathered_lists(world: World) -> bool:
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(4)]
    inputs = [torch.full((2,), float(world.rank)), torch.full((3,), world.rank + 0.5)]
    dist.all_gather_coalesced(outputs, inputs, group=world.ours[0])
    return all(bool((a == rank).all() and (b == rank + 0.5).all()) for rank, (a, b) in enumerate(outputs))


@pytest.mark.filterwarnings("ignore")
def test_lists_of_tensors_are_gathered(worlds: Worlds) -> None:
    assert worlds.run(gathered_lists) == [True] * 4


def gathered_uneven(world: World) -> bool:
    outputs = [torch.zeros(1000 * rank + 1) for rank in range(4)]
    dist.all_gather(outputs, torch.full((1000 * world.rank + 1,), float(world.rank)), group=world.ours[0])
    pieces = [torch.full((500 * rank,), world.rank + 1.0) for rank in range(4)]
    part = torch.zeros(500 * world.rank)
    dist.reduce_scatter(part, pieces, group=world.ours[0])
    return all(bool((output == rank).all()) for rank, output in enumerate(outputs)) and bool((part == 10.0).all())


def test_workers_may_bring_tensors_of_different_sizes(worlds: Worlds) -> None:
    assert worlds.run(gathered_uneven) == [True] * 4


def passed_barrier(world: World) -> tuple[float, float]:
    if world.rank == 2:
        time.sleep(0.2)  # the others are there long before
    before = time.monotonic()
    dist.barrier(group=world.ours[0])
    return before, time.monotonic()


def test_nobody_leaves_a_barrier_before_all_have_come(worlds: Worlds) -> None:
    before, after = zip(*worlds.run(passed_barrier), strict=True)
    assert max(before) <= min(after)


def shared_memory_in_place(world: World) -> bool:
    """Outputs that are parts of the input, and the other way round, as FSDP has them."""
    whole = torch.arange(4000.0) + world.rank
    own = whole[world.rank * 1000 :][:1000]
    dist.reduce_scatter_tensor(own, whole, group=world.ours[0])
    scattered = torch.equal(own, (torch.arange(4000.0) * 4 + 6)[world.rank * 1000 :][:1000])
    dist.all_gather_into_tensor(whole, own, group=world.ours[0])
    return scattered and torch.equal(whole, torch.arange(4000.0) * 4 + 6)


def test_inputs_and_outputs_may_be_one_memory(worlds: Worlds) -> None:
    assert worlds.run(shared_memory_in_place) == [True] * 4


# -- what cannot be ----------------------------------------------------------------------------------------------------


def refused(world: World, name: str) -> str:
    group, float16 = world.ours[0], torch.float16
    wrong = {
        "bits of floats": lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, group=group),
        "the mean of truths": lambda: dist.all_reduce(torch.ones(3) > 0, dist.ReduceOp.AVG, group=group),
        "the largest of sparse tensors": lambda: dist.all_reduce(
            torch.eye(3).to_sparse(), dist.ReduceOp.MAX, group=group
        ),
        "uint16": lambda: dist.all_reduce(torch.ones(3, dtype=torch.uint16), group=group),
        "a longer output": lambda: dist.all_gather_into_tensor(torch.ones(9), torch.ones(2), group=group),
        "a longer input": lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(9), group=group),
        "another dtype": lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(8, dtype=float16), group=group),
        "a shorter piece": lambda: dist.all_gather([torch.ones(3)] * 4, torch.ones(1), group=group),
        "too few pieces": lambda: dist.all_gather([torch.ones(3)] * 3, torch.ones(3), group=group),
        "rows that cannot be split": lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7), group=group),
        "other splits": lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7), [7], [7], group=group),
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the caller looks at its words)
        wrong[name]()
    # Nobody is left in the middle of it.
    tensor = torch.ones(2000)
    dist.all_reduce(tensor, group=group)
    assert bool((tensor == 4.0).all())
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bits of floats", "cannot reduce float32 by BAND"),
        ("the mean of truths", "cannot reduce bool by AVG"),
        ("the largest of sparse tensors", "can reduce sparse tensors by SUM and AVG only"),
        ("uint16", "cannot reduce uint16 by SUM"),
        ("a longer output", "9 torch.float32 are not 4 times 2"),
        ("a longer input", "9 torch.float32 are not 4 times 2"),
        ("another dtype", "8 torch.float16 are not 4 times 2 torch.float32"),
        ("a shorter piece", "3 torch.float32 do not match 1 torch.float32"),
        ("too few pieces", "found 3 tensors for 4 workers"),
        ("rows that cannot be split", "7 rows cannot be split"),
        ("other splits", r"7 rows cannot be split into \[7\]"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_group_goes_on(worlds: Worlds, name: str, words: str) -> None:
    for text in worlds.run(refused, name):
        assert re.search(words, text), text
