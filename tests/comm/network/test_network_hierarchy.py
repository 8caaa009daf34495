"""A sum over several hosts: the same total, and a host sends its gradient once."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pool import alone
from wire_local import WireLocal
from wires import SOON, Counting, hosts_of, wire_of, with_a_death

from paceline.comm.group import Group
from paceline.comm.network import algorithms
from paceline.comm.network.compression import Bfloat16
from paceline.comm.network.hierarchy import all_reduce, count_lanes
from paceline.errors import PeerLostError

HOSTS = [(1, 1), (2, 2), (2, 1), (1, 3), (2, 1, 2), (1, 1, 1), (3, 2), (4,), (1, 1, 2)]
SLAB = 4096  # bytes: many slabs in small tensors
MEGABYTES = 1 << 18


def values(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    dice = torch.Generator().manual_seed(rank)
    if not dtype.is_floating_point:
        return torch.randint(0, 20, (size,), generator=dice).to(dtype)
    return torch.randn(size, generator=dice, dtype=torch.float64).to(dtype)


def summed(
    group: Group, workers: tuple[int, ...], leaders: bool, size: int, dtype: torch.dtype, algorithm: str | None
) -> torch.Tensor:
    within, lane, lanes = hosts_of(group, workers, leaders=leaders)
    flat = values(group.rank, size, dtype)
    all_reduce(flat, WireLocal(within), lane, lanes=lanes, algorithm=algorithm, slab=SLAB)
    return flat


@given(
    workers=st.sampled_from(HOSTS),
    leaders=st.booleans(),
    size=st.one_of(st.integers(0, 300), st.integers(1000, 9000)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8]),
    algorithm=st.sampled_from([None, *sorted(algorithms.ALGORITHMS)]),
)
def test_the_total_is_the_sum_over_all_workers_of_all_hosts(
    pool: Any, workers: tuple[int, ...], leaders: bool, size: int, dtype: torch.dtype, algorithm: str | None
) -> None:
    world = sum(workers)
    found = pool(world).run(summed, workers, leaders, size, dtype, algorithm)
    for other in found[1:]:
        assert torch.equal(found[0].view(torch.uint8), other.view(torch.uint8))
    brought = [values(rank, size, dtype) for rank in range(world)]
    if not dtype.is_floating_point:
        assert torch.equal(found[0], sum(each.long() for each in brought).to(dtype))
        return
    total, magnitude = sum(each.double() for each in brought), sum(each.double().abs() for each in brought)
    assert ((found[0].double() - total).abs() <= torch.finfo(dtype).eps * world * (magnitude + 1e-6)).all()


@pytest.mark.parametrize(("workers", "lanes"), [((2, 2), 2), ((4, 2), 2), ((3, 1), 1), ((5,), 5)], ids=str)
def test_every_lane_has_a_worker_on_every_host(workers: tuple[int, ...], lanes: int) -> None:
    assert count_lanes(workers) == lanes
    assert count_lanes(workers, leaders=True) == 1


def test_a_worker_without_its_lane_is_refused() -> None:
    class Alone:
        rank, world = 0, 1

    with pytest.raises(ValueError, match="lanes=2 does not match"):
        all_reduce(torch.ones(3), WireLocal(Alone()), None, lanes=2)  # type: ignore[arg-type]


class Watching(WireLocal):
    """Holds the caller to what a `Local` is promised."""

    def __init__(self, wire: Any) -> None:
        super().__init__(wire)
        self.opened: list[int] = []
        self.most = 0

    def reduce_parts(self, flat: torch.Tensor, parts: int) -> torch.Tensor:
        self.opened.append(flat.data_ptr())
        self.most = max(self.most, len(self.opened))
        return super().reduce_parts(flat, parts)

    def share_parts(self, flat: torch.Tensor, parts: int) -> None:
        assert self.opened.pop(0) == flat.data_ptr()
        super().share_parts(flat, parts)


def watched(group: Group, size: int) -> tuple[int, int]:
    within, lane, lanes = hosts_of(group, (2, 2))
    local = Watching(within)
    all_reduce(torch.ones(size), local, lane, lanes=lanes, slab=SLAB)
    return local.most, len(local.opened)


@pytest.mark.parametrize(("size", "most"), [(0, 0), (1000, 1), (1025, 2), (20_000, 2)])
def test_at_most_two_slabs_are_open_and_all_are_closed_in_order(pool: Any, size: int, most: int) -> None:
    assert pool(4).run(watched, size) == [(most, 0)] * 4


# -- what crosses the network ------------------------------------------------------------------------------------------


def crossing(group: Group, workers: tuple[int, ...], leaders: bool, compressed: bool) -> tuple[int, int]:
    """Bytes that this worker sends to other hosts for 4 MB: by hosts, and in a ring of all workers."""
    within, lane, lanes = hosts_of(group, workers, leaders=leaders)
    flat = torch.ones(4 * MEGABYTES)
    compressor = Bfloat16() if compressed else None
    all_reduce(flat, WireLocal(within), lane, lanes=lanes, compressor=compressor)
    flat_ring = Counting(wire_of(group))
    algorithms.all_reduce(torch.ones(4 * MEGABYTES), flat_ring, algorithm="ring")
    last_of_host = within.rank == within.world - 1  # its neighbour is on the next host
    return (0 if lane is None else lane.bytes), flat_ring.bytes if last_of_host else 0


@pytest.mark.crossed("leaders")
@pytest.mark.parametrize("leaders", [False, True], ids=["spread", "leaders"])
@pytest.mark.parametrize("workers", [(2, 2), (3, 2), (2, 1, 2), (1, 3)], ids=str)
def test_a_host_sends_its_gradient_once_and_not_once_a_worker(
    pool: Any, workers: tuple[int, ...], leaders: bool
) -> None:
    hosts, world, size = len(workers), sum(workers), 4 << 20
    found = pool(world).run(crossing, workers, leaders, False)
    by_hosts, by_workers = sum(sent for sent, _ in found), sum(sent for _, sent in found)
    if hosts == 2:
        assert by_hosts == hosts * size  # each host's gradient, once
    # The least that any sum over hosts can do, against what a ring of workers does at their borders.
    assert by_hosts <= 2 * (hosts - 1) * size * 1.001
    assert by_workers == pytest.approx(hosts * 2 * (world - 1) / world * size, rel=0.001)
    assert by_hosts < by_workers


def test_all_workers_of_a_host_share_the_sending(pool: Any) -> None:
    spread = [sent for sent, _ in pool(4).run(crossing, (2, 2), False, False)]
    assert spread == [2 << 20] * 4
    leaders = [sent for sent, _ in pool(4).run(crossing, (2, 2), True, False)]
    assert leaders == [4 << 20, 0, 4 << 20, 0]


def test_bf16_halves_what_crosses(pool: Any) -> None:
    plain = sum(sent for sent, _ in pool(4).run(crossing, (2, 2), False, False))
    compressed = sum(sent for sent, _ in pool(4).run(crossing, (2, 2), False, True))
    assert compressed == plain // 2


# -- a peer that is gone -----------------------------------------------------------------------------------------------


def lose_one(group: Group, dying: int) -> float:
    within, lane, lanes = hosts_of(group, (2, 2))
    flat = torch.ones(16 * MEGABYTES)
    all_reduce(flat[:1000], WireLocal(within), lane, lanes=lanes)
    if group.rank == dying:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            all_reduce(flat, WireLocal(within), lane, lanes=lanes)
    except PeerLostError:
        return time.monotonic() - began


@pytest.mark.parametrize("dying", [0, 3])
def test_a_killed_worker_is_noticed_on_every_host_soon(dying: int) -> None:
    with alone(4) as workers:
        answers, dead = with_a_death(workers, lose_one, dying)
    assert dead == {dying}
    assert len(answers) == 3
    assert all(seconds < SOON for seconds in answers.values())
