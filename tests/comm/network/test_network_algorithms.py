"""Sums over a wire: the same total by every algorithm, for every size, dtype and number of workers."""

from __future__ import annotations

import math
import os
import signal
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pool import alone
from wires import SOON, Counting, ThreadWire, on_threads, wire_of, with_a_death

from paceline.comm.group import Group
from paceline.comm.network import costs
from paceline.comm.network.algorithms import ALGORITHMS, all_reduce, broadcast
from paceline.comm.network.costs import Costs, choose, estimate, measure
from paceline.comm.network.gloo_wire import Wire
from paceline.comm.network.parts import cut
from paceline.errors import PeerLostError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
EXACT = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
DTYPES = (*FLOATS, *EXACT, torch.complex64)
names = st.sampled_from(sorted(ALGORITHMS))
# Around the cuts of parts, and around the chunks of each dtype.
sizes = st.one_of(
    st.integers(0, 200), st.sampled_from([costs.CHUNK // 4 + 1, costs.CHUNK // 2 - 1, costs.CHUNK // 4 * 5 + 3])
)


def values(rank: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype in EXACT:
        return torch.randint(0, 2 if dtype is torch.bool else 20, (size,), generator=dice).to(dtype)
    return torch.randn(size, generator=dice, dtype=torch.float64).to(dtype)


def assert_summed(found: list[torch.Tensor], size: int, dtype: torch.dtype, seed: int = 0) -> None:
    """Against a sum in float64 (whole numbers: exact), and bit by bit against each other."""
    world = len(found)
    brought = [values(rank, size, dtype, seed) for rank in range(world)]
    for other in found[1:]:
        assert torch.equal(found[0].view(torch.uint8), other.view(torch.uint8))
    if dtype in EXACT:
        total = sum(each.long() for each in brought)
        assert torch.equal(found[0], total.to(dtype))
        return
    wide = torch.complex128 if dtype.is_complex else torch.float64
    total, magnitude = sum(each.to(wide) for each in brought), sum(each.to(wide).abs() for each in brought)
    allowed = torch.finfo(dtype).eps * world * (magnitude + 1e-6)
    assert ((found[0].to(wide) - total).abs() <= allowed).all()


# -- the total ---------------------------------------------------------------------------------------------------------


def summed(group: Group, name: str, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    flat = values(group.rank, size, dtype, seed)
    all_reduce(flat, wire_of(group), algorithm=name)
    return flat


@given(name=names, world=st.integers(2, 5), size=sizes, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 5))
def test_the_total_is_the_sum_on_every_worker(
    pool: Any, name: str, world: int, size: int, dtype: torch.dtype, seed: int
) -> None:
    assert_summed(pool(world).run(summed, name, size, dtype, seed), size, dtype, seed)


@pytest.mark.slow
@given(name=names, world=st.integers(1, 19), size=sizes, dtype=st.sampled_from(DTYPES))
def test_the_total_is_the_sum_on_any_number_of_workers(name: str, world: int, size: int, dtype: torch.dtype) -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        flat = values(wire.rank, size, dtype)
        all_reduce(flat, wire, algorithm=name)
        return flat

    assert_summed(on_threads(world, work), size, dtype)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_view_is_summed_and_its_neighbours_are_left_alone(name: str) -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        whole = torch.ones(600)
        all_reduce(whole[100:500], wire, algorithm=name)
        return whole

    expected = torch.ones(600)
    expected[100:500] = 6.0
    assert all(torch.equal(found, expected) for found in on_threads(6, work))


def test_half_types_are_summed_in_single_precision() -> None:
    """2048 + 1 is 2048 in half precision."""

    def work(wire: ThreadWire) -> torch.Tensor:
        flat = torch.ones(5, 200, dtype=torch.float16)
        flat[wire.rank] = 2048.0
        all_reduce(flat.view(-1), wire)
        return flat

    for found in on_threads(5, work):
        assert (found == 2052.0).all()


def summed_in_turn(group: Group, rounds: int) -> list[float]:
    """Without waiting for others in between: a fast worker is a message ahead, never a sum."""
    wire, found = wire_of(group), []
    for number in range(rounds):
        flat = torch.full((300,), float(number + group.rank))
        all_reduce(flat, wire, algorithm=sorted(ALGORITHMS)[number % len(ALGORITHMS)])
        found.append(float(flat[-1]))
    return found


def test_sums_that_follow_each_other_are_not_mixed_up(pool: Any) -> None:
    expected = [3.0 * number + 3 for number in range(40)]
    assert pool(3).run(summed_in_turn, 40) == [expected] * 3


@given(world=st.integers(1, 20), size=st.integers(0, 50))
def test_a_broadcast_gives_everyone_the_first_workers_values(world: int, size: int) -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        flat = torch.full((size,), float(wire.rank + 7))
        broadcast(flat, wire)
        return flat

    assert all((found == 7.0).all() for found in on_threads(world, work))


@pytest.mark.parametrize("flat", [torch.ones(4, 4), torch.ones(8)[::2]], ids=["a matrix", "with gaps"])
def test_what_is_not_flat_is_refused(flat: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="flat"):
        all_reduce(flat, ThreadWire(0, 2, None))  # type: ignore[arg-type]


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "halving_doubling", "direct"])
def test_no_worker_sends_more_than_its_share(name: str, world: int) -> None:
    size = world * 64 * 1000

    def work(wire: ThreadWire) -> int:
        counting = Counting(wire)
        all_reduce(torch.ones(size), counting, algorithm=name)
        return counting.bytes

    assert on_threads(world, work) == [2 * (world - 1) * size * 4 // world] * world


@pytest.mark.parametrize("world", [5, 6, 8, 13])
def test_a_tree_loads_no_link_with_more_than_twice_the_tensor(world: int) -> None:
    def work(wire: ThreadWire) -> int:
        counting = Counting(wire)
        all_reduce(torch.ones(128_000), counting, algorithm="tree")
        return counting.bytes

    assert max(on_threads(world, work)) <= 2 * 128_000 * 4


@given(size=st.integers(0, 1 << 30), world=st.integers(1, 600))
def test_nothing_is_expected_to_be_sooner_than_the_choice(size: int, world: int) -> None:
    known = Costs(latency=50e-6, bandwidth=1e9)
    chosen = choose(size, world, known)
    assert chosen in ALGORITHMS
    assert all(estimate(chosen, size, world, known) <= estimate(name, size, world, known) for name in costs.MODELS)


def test_small_tensors_go_by_few_messages_and_large_ones_by_few_bytes() -> None:
    assert choose(1 << 10, 8) == "doubling"
    assert choose(64 << 20, 8) == "halving_doubling"
    assert choose(256 << 20, 6) == "ring"
    assert choose(4 << 20, 48) == "tree"
    # A link that answers late makes messages dearer than bytes.
    assert choose(1 << 20, 8, Costs(latency=0.1, bandwidth=1e9)) == "doubling"


def messages_of(group: Group) -> int:
    wire = Counting(wire_of(group))
    all_reduce(torch.ones(10), wire)
    return wire.messages


def test_a_small_sum_of_four_takes_two_messages_each(pool: Any) -> None:
    assert pool(4).run(messages_of) == [2] * 4


def measured(group: Group) -> Costs:
    """Links whose times are known: messages really pass, but what that takes is the machine's affair."""
    plain = costs._ring_once

    def played(wire: Wire, tensor: torch.Tensor) -> float:
        assert plain(wire, tensor) > 0
        return 1e-4 * (wire.rank + 1) + (
            tensor.nbytes / (1e9 * (wire.rank + 1)) if tensor.nbytes == costs.PROBE else 0.0
        )

    costs._ring_once = played
    try:
        return measure(wire_of(group))
    finally:
        costs._ring_once = plain


def test_measured_costs_are_those_of_the_slowest_link_on_all_workers(pool: Any) -> None:
    found = pool(3).run(measured)
    assert len(set(found)) == 1
    assert (found[0].latency, found[0].bandwidth) == pytest.approx((3e-4, 1e9))
    assert measure(ThreadWire(0, 1, None)) == Costs()  # type: ignore[arg-type]


@given(length=st.integers(0, 5000), parts=st.integers(1, 40))
def test_parts_cover_everything_once(length: int, parts: int) -> None:
    pieces = cut(length, parts)
    assert len(pieces) == parts
    assert [place for start, end in pieces for place in range(start, end)] == list(range(length))
    assert max(end - start for start, end in pieces) <= math.ceil(length / parts) + 64


# -- a peer that is gone -----------------------------------------------------------------------------------------------


def lose_one(group: Group, name: str) -> float:
    """The last worker dies in the middle of a sum. Seconds until the others know."""
    wire: Wire = wire_of(group)
    all_reduce(torch.ones(1000), wire, algorithm=name)
    if group.rank == group.world - 1:
        wire.send(torch.ones(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            all_reduce(torch.ones(1 << 20), wire, algorithm=name)
    except PeerLostError:
        return time.monotonic() - began


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_killed_peer_is_noticed_by_everyone_soon(name: str) -> None:
    with alone(4) as workers:
        answers, dead = with_a_death(workers, lose_one, name)
    assert dead == {3}
    assert all(seconds < SOON for seconds in answers.values())
    assert len(answers) == 3
