"""Operations are matched by name: any order on each rank, several threads, errors on every rank."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hvd_worlds import fresh, world
from pool import Pools

import paceline.horovod.torch as hvd
from paceline.errors import PeerLostError

SIZES = (2, 3)


def any_order(rank: int, size: int, seed: int) -> int:
    """The number of different orders."""
    names = [f"order.{i}" for i in range(60)]
    for round_ in range(4):  # the later ones are in the cache
        order = list(range(len(names)))
        random.Random(seed + 97 * rank + round_).shuffle(order)
        handles = {
            i: hvd.allreduce_async(torch.full((i + 1,), float(i + rank)), name=names[i], op=hvd.Sum) for i in order
        }
        random.Random(rank).shuffle(order)
        for i in order:
            assert hvd.synchronize(handles[i]).tolist() == [float(i * size + sum(range(size)))] * (i + 1)
    return len(names)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_submit_in_different_orders(pool: Pools, size: int) -> None:
    world(pool, size).run(any_order, 5)


def opposite_order(rank: int, size: int) -> None:
    kinds: list[Any] = [
        lambda: hvd.allreduce_async(torch.ones(3), name="x", op=hvd.Sum),
        lambda: hvd.allgather_async(torch.ones(rank + 1), name="x"),
        lambda: hvd.broadcast_async(torch.full((2,), rank), 0, name="x"),
        lambda: hvd.alltoall_async(torch.arange(size), name="x"),
        lambda: hvd.reducescatter_async(torch.ones(size), name="x", op=hvd.Sum),
        lambda: hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], name="g", op=hvd.Sum),
    ]
    for _ in range(3):
        numbers = range(len(kinds)) if rank % 2 else reversed(range(len(kinds)))
        handles = {number: kinds[number]() for number in numbers}
        results = [hvd.synchronize(handles[number]) for number in range(len(kinds))]
        assert results[0].tolist() == [size] * 3
        assert len(results[1]) == size * (size + 1) // 2
        assert results[2].tolist() == [0, 0]
        assert results[3][0].tolist() == [rank] * size
        assert results[4].tolist() == [size]
        assert results[5][1].tolist() == [size] * 2


@pytest.mark.parametrize("size", SIZES)
def test_one_name_of_each_kind_in_opposite_orders(pool: Pools, size: int) -> None:
    world(pool, size).run(opposite_order)


def from_threads(rank: int, size: int) -> None:
    found: dict[int, float] = {}

    def work(number: int) -> None:
        for turn in range(15):
            name = f"thread.{number}" if turn % 2 else f"thread.{number}.{turn}"
            found[number] = float(hvd.allreduce(torch.tensor([float(number)]), name=name, op=hvd.Sum))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads if rank else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number * size for number in range(4)}


@pytest.mark.parametrize("size", SIZES)
def test_several_threads_submit(pool: Pools, size: int) -> None:
    world(pool, size).run(from_threads)


def poll_and_handles(rank: int, size: int) -> None:
    handle = hvd.allreduce_async(torch.ones(1), name="polled")
    while not hvd.poll(handle):
        time.sleep(0.001)
    assert hvd.synchronize(handle).tolist() == [1.0]
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="cleared"):
        hvd.poll(handle)


def test_poll(pool: Pools) -> None:
    world(pool, 2).run(poll_and_handles)


# -- mistakes ------------------------------------------------------------------------------------------------------


def duplicate(rank: int, size: int) -> None:
    hvd.barrier()
    if rank == 0:
        first = hvd.allreduce_async(torch.ones(2), name="twice")
        with pytest.raises(ValueError, match="same name as another tensor that is currently being processed"):
            hvd.allreduce_async(torch.ones(2), name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(torch.ones(2), name="twice")
    assert hvd.synchronize(first).tolist() == [1.0, 1.0]


def test_a_name_in_flight_is_refused(pool: Pools) -> None:
    world(pool, 2).run(duplicate)


def mismatches(rank: int, size: int) -> list[str]:
    """The messages on this rank, which goes on after each."""
    first = rank == 0
    cases: list[Any] = [
        lambda: hvd.allreduce(torch.ones(2 if first else 3), name="shape"),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.float32 if first else torch.float64), name="dtype"),
        lambda: hvd.allreduce(torch.ones(2), name="op", op=hvd.Sum if first else hvd.Max),
        lambda: hvd.allreduce(torch.ones(2), name="scale", op=hvd.Sum, prescale_factor=1.0 if first else 2.0),
        lambda: hvd.broadcast(torch.ones(2), 0 if first else 1, name="root"),
        lambda: hvd.broadcast(torch.ones(2 if first else 3), 0, name="bshape"),
        lambda: hvd.allgather(torch.ones(2, 2 if first else 3), name="gather"),
        lambda: hvd.allgather(torch.ones(*[2] * (1 if first else 2)), name="dims"),
        lambda: hvd.alltoall(torch.ones(size, dtype=torch.int32 if first else torch.int64), name="a2a"),
        lambda: hvd.reducescatter(torch.ones(size, 1 if first else 2), name="rs"),
        lambda: hvd.grouped_allreduce([torch.ones(1)] * (1 if first else 2), name="count"),
        lambda: hvd.reducescatter(torch.tensor(1.0), name="scalar"),
        lambda: hvd.allgather(torch.tensor(1.0), name="gscalar"),
        lambda: hvd.broadcast(torch.ones(1), size, name="norank"),
    ]
    said = []
    for case in cases:
        with pytest.raises(hvd.HorovodInternalError) as raised:
            case()
        said.append(str(raised.value))
    assert hvd.allreduce(torch.ones(2), name="shape").tolist() == [1.0, 1.0], "all goes on after an error"
    return said


@pytest.mark.parametrize("size", SIZES)
def test_mismatches_raise_on_every_rank_and_name_the_difference(pool: Pools, size: int) -> None:
    texts = world(pool, size).run(mismatches)
    assert all(said == texts[0] for said in texts)
    shape, dtype, op, scale, root = texts[0][:5]
    assert "allreduce.shape" in shape
    assert "[2]" in shape
    assert "[3]" in shape
    assert "rank 0" in shape
    assert "rank 1" in shape
    assert "float32" in dtype
    assert "float64" in dtype
    assert "Sum" in op
    assert "Max" in op
    assert "prescale" in scale
    assert "root ranks" in root


def own_mistakes(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce(torch.ones(2, 3).t())
    with pytest.raises(ValueError, match="32-bit"):
        hvd.alltoall(torch.ones(4), splits=torch.tensor([2] * size))
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(torch.ones(4), splits=[4] * size)
    with pytest.raises(ValueError, match="even multiple"):
        hvd.alltoall(torch.ones(size * 2 + 1))


def test_mistakes_of_one_rank_raise_at_once(pool: Pools) -> None:
    world(pool, 2).run(own_mistakes)


def changing_shapes(rank: int, size: int) -> None:
    for turn in range(12):
        rows = 1 + (turn // 4) % 2 + (rank if turn % 3 == 0 else 0)
        assert len(hvd.allgather(torch.ones(rows), name="rows")) == sum(
            1 + (turn // 4) % 2 + (r if turn % 3 == 0 else 0) for r in range(size)
        )
        kind = torch.float32 if turn % 5 else torch.float64
        assert hvd.allreduce(torch.ones(turn // 3 + 1, dtype=kind), name="grows").dtype == kind


@pytest.mark.parametrize("size", SIZES)
def test_a_name_may_come_again_with_another_shape(pool: Pools, size: int) -> None:
    world(pool, size).run(changing_shapes)


# -- join ----------------------------------------------------------------------------------------------------------


def joins(rank: int, size: int) -> list[Any]:
    found: list[Any] = []
    for first in range(size):
        steps = 0 if rank == first else 1 + rank
        for step in range(steps):
            found.append(float(hvd.allreduce(torch.ones(3), name="loss" if step else "first", op=hvd.Sum)[0]))
            hvd.allreduce(torch.ones(2))  # without a name
        found.append(hvd.join())
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == size, "names are counted anew after a join"
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_has_joined_contributes_zeros(pool: Pools, size: int) -> None:
    last_ranks = [[value for value in found if isinstance(value, int)] for found in world(pool, size).run(joins)]
    assert all(ranks == last_ranks[0] for ranks in last_ranks)
    assert last_ranks[0][-1] == size - 2, "the rank with the most steps joins last"


def joined_gather(rank: int, size: int) -> None:
    hvd.broadcast(torch.ones(1), 0, name="cached")
    if rank == 0:
        hvd.join()
        return
    for operation in (lambda: hvd.allgather(torch.ones(1)), lambda: hvd.broadcast(torch.ones(1), 0, name="cached")):
        with pytest.raises(hvd.HorovodInternalError, match="not supported with join"):
            operation()
    hvd.join()


@pytest.mark.parametrize("size", SIZES)
def test_only_allreduce_goes_on_after_a_join(pool: Pools, size: int) -> None:
    world(pool, size).run(joined_gather)


# -- Horovod as a whole --------------------------------------------------------------------------------------------


def again(rank: int, size: int) -> None:
    hvd.allreduce(torch.ones(1), name="before")
    hvd.shutdown()
    assert not hvd.is_initialized()
    for question in (hvd.rank, hvd.size, hvd.barrier, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match=r"not been initialized; use hvd.init\(\)"):
            question()
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert float(hvd.allreduce(torch.ones(1), name="before")) == 1.0


@pytest.mark.parametrize("size", SIZES)
def test_shutdown_and_init_again(pool: Pools, size: int) -> None:
    world(pool, size).run(again)


def leaves_early(rank: int, size: int) -> str:
    if rank == 1:
        hvd.shutdown()
        return ""
    with pytest.raises(hvd.HorovodInternalError) as raised:
        hvd.allreduce(torch.ones(1))
    hvd.shutdown()
    return str(raised.value)


def test_operations_fail_if_a_rank_has_shut_down(pool: Pools) -> None:
    texts = world(pool, 2).run(leaves_early)
    assert "shut down" in texts[0]


def test_a_rank_that_dies_fails_the_operations_of_the_others() -> None:
    with fresh(3) as ranks, pytest.raises(RuntimeError) as raised:
        ranks.run(dies)
    assert "died" in str(raised.value) or isinstance(raised.value, PeerLostError)


def dies(rank: int, size: int) -> None:
    hvd.barrier()
    if rank == 2:
        os._exit(3)
    with pytest.raises(hvd.HorovodInternalError, match="gone"):
        hvd.allreduce(torch.ones(1), name="never")


def small_cache(rank: int, size: int) -> None:
    for _ in range(3):
        any_order(rank, size, 1)
    for number in range(40):
        hvd.allreduce(torch.ones(number + 1), name=f"other.{number % 13}")


@pytest.mark.parametrize("capacity", ["0", "1", "16"])
def test_a_cache_that_is_too_small(capacity: str) -> None:
    with fresh(2, HOROVOD_CACHE_CAPACITY=capacity) as ranks:
        ranks.run(small_cache)


def test_without_fusion() -> None:
    with fresh(2, HOROVOD_FUSION_THRESHOLD="0") as ranks:
        ranks.run(any_order, 3)


def stalls(rank: int, size: int) -> str:
    hvd.allreduce(torch.ones(1), name="cached")
    if rank == 0:
        sys.stderr = io.StringIO()
        handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in ("cached", "missing")]
        with pytest.raises(hvd.HorovodInternalError) as raised:
            hvd.synchronize(handles[0])
        assert "Missing ranks:\n1: [allreduce." in sys.stderr.getvalue()
        return str(raised.value)
    while hvd.mpi_ops.basics.controller().is_running:
        time.sleep(0.01)
    with pytest.raises(hvd.HorovodInternalError) as raised:
        hvd.allreduce(torch.ones(1), name="cached")
    return str(raised.value)


def test_a_rank_that_never_submits_is_reported_and_ended() -> None:
    quick = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0.6"}
    with fresh(2, **quick) as ranks:
        texts = ranks.run(stalls)
    assert all("stalled" in text and "1: [allreduce." in text for text in texts)


def timelines(rank: int, size: int, folder: str) -> None:
    path = f"{folder}/timeline.json"
    hvd.start_timeline(path, mark_cycles=True)
    for _ in range(2):
        handles = [hvd.allreduce_async(torch.ones(5), name=f"traced.{number}") for number in range(3)]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.broadcast(torch.ones(1), 0, name="sent")
    hvd.stop_timeline()
    hvd.barrier()


def test_the_timeline_is_a_chrome_trace(pool: Pools, tmp_path: Path) -> None:
    world(pool, 2).run(timelines, str(tmp_path))
    events = json.loads((tmp_path / "timeline.json").read_text())
    names = {event.get("name") for event in events}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START", "NEGOTIATE_BROADCAST", "0", "1"} <= names
    rows = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert set(rows.values()) >= {"allreduce.traced.0", "allreduce.traced.2", "broadcast.sent"}
    for row in rows:
        phases = [event["ph"] for event in events if event["pid"] == row]
        assert phases.count("B") == phases.count("E")
