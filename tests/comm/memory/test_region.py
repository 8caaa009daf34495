"""Shared memory: who sees it, what is left of it, and how ended workers are noticed."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone
from shm import left_since, shared_memory
from torch._C._distributed_c10d import PrefixStore
from worlds import World, Worlds

from paceline.comm.group import Group
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.mailbox import Mailbox
from paceline.comm.memory.reductions import Reductions
from paceline.comm.memory.region import Peers, Region, host_of_this_process
from paceline.errors import PeerLostError

TIMES = 50


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def mapped() -> int:
    """Shared pieces of memory that this process holds."""
    gc.collect()
    with open("/proc/self/maps") as file:
        return sum("memfd:paceline" in line for line in file)


def test_memory_is_shared_by_all_who_open_it_and_by_none_after_the_door_is_closed() -> None:
    ours = Region(100)
    other = Region.of(*ours.place, 100)
    other.bytes[7] = 42
    assert ours.bytes[7] == 42
    assert ours.size == other.size == 4096
    place = ours.place
    ours.close_door()
    with pytest.raises(PeerLostError, match=r"ended before its memory was shared"):
        Region.of(*place, 100)
    other.bytes[8] = 43
    assert ours.bytes[8] == 43


def test_memory_has_no_name_and_goes_with_the_last_tensor() -> None:
    before = shared_memory(), descriptors(), mapped()
    region = Region(10_000)
    tensor = region.bytes[:8].view(torch.float64)
    assert not left_since(before[0])
    del region
    tensor[0] = 1.5  # keeps the memory, without the region
    assert mapped() == before[2] + 1
    del tensor
    assert (descriptors(), mapped()) == before[1:]


@pytest.mark.parametrize("size", [0, 1, 4096, 4097])
def test_any_size_can_be_had(size: int) -> None:
    assert size <= Region(size).bytes.numel() <= size + 4096


def test_ended_workers_are_noticed_by_rank() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    peers = Peers({0: os.pidfd_open(child), 2: os.pidfd_open(os.getppid())})
    assert peers.gone() == []
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)
    assert peers.gone() == [0]
    assert peers.gone() == [0]


def test_a_descriptor_that_has_been_used_again_for_a_file_is_not_mapped(tmp_path: Path) -> None:
    """What lies at a worker's old number may be any file of the account's: writing to it would destroy it."""
    (tmp_path / "weights").write_bytes(bytes(4096))
    with open(tmp_path / "weights", "r+b") as file:
        with pytest.raises(PeerLostError, match="closed its memory"):
            Region.of(os.getpid(), file.fileno(), 4096)


def test_many_threads_may_ask_at_once_who_has_ended() -> None:
    peers, failed = Peers({1: os.pidfd_open(os.getppid())}), list[Exception]()

    def ask() -> None:
        try:
            for _ in range(500):
                assert peers.gone() == []
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_descriptors_of_workers_are_given_back() -> None:
    before = descriptors()
    for _ in range(TIMES):
        Peers({1: os.pidfd_open(os.getppid())})
    assert descriptors() == before


def test_a_host_is_the_same_for_processes_beside_each_other_and_another_in_another_network() -> None:
    here, (read, write) = host_of_this_process(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, host_of_this_process().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode() == here
    for each in (read, write):
        os.close(each)


# -- groups and buckets that are dropped -------------------------------------------------------------------------------


def held_by_groups(group: Group, prefix: str) -> tuple[list[int], list[int]]:
    """Descriptors and pieces of memory, at first and after many groups were made and dropped."""
    store = PrefixStore(prefix, group._store)
    counts = []
    for turn in range(TIMES + 1):
        engine = MemoryEngine(PrefixStore(f"engine{turn}", store), group.rank, group.world)
        sums = Reductions(PrefixStore(f"sums{turn}", store), group.rank, group.world)
        mail = Mailbox(PrefixStore(f"mail{turn}", store), group.rank, group.world)
        bucket = sums.allocate(1000, torch.float32)
        bucket.flat.fill_(1.0)
        sums.finish(sums.start(bucket))
        engine.all_reduce(bucket.flat)
        assert bool((bucket.flat == group.world**2).all())
        del engine, sums, mail, bucket
        if turn in (0, TIMES):
            counts.append((descriptors(), mapped()))
    return counts[0], counts[1]


def test_groups_that_are_dropped_leave_nothing(pool: Any) -> None:
    for first, last in pool(3).run(held_by_groups, "dropped"):
        assert first == last


def held_by_torch_groups(world: World) -> tuple[Any, Any]:
    counts, of_others = [], set(threading.enumerate())
    for turn in range(TIMES // 2 + 1):
        group = dist.new_group([0, 1, 2, 3], backend="paceline")
        tensor = torch.ones(100)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.get_future().then(lambda future: future.value()).wait()
        dist.all_reduce(tensor, group=group)
        message = torch.empty(100)
        works = [
            dist.isend(tensor, (world.rank + 1) % 4, group=group, tag=3),
            dist.irecv(message, (world.rank - 1) % 4, group=group, tag=3),
        ]
        for work in works:
            work.wait()
        assert bool((message == 16.0).all())
        gone = weakref.ref(group)
        dist.destroy_process_group(group)
        del group, work, works
        for thread in set(threading.enumerate()) - of_others:
            thread.join(60)
        if turn in (0, TIMES // 2):
            threads = threading.active_count()
            counts.append((descriptors(), mapped(), threads, gone() is None))
    return counts[0], counts[1]


def test_torch_groups_that_are_destroyed_leave_nothing(worlds: Worlds) -> None:
    for first, last in worlds.run(held_by_torch_groups):
        assert first == last
        assert first[3]


def held_by_buckets(group: Group, prefix: str) -> tuple[Any, Any]:
    sums = Reductions(PrefixStore(prefix, group._store), group.rank, group.world)
    counts = []
    for turn in range(TIMES + 1):
        buckets = [sums.allocate(5000, torch.float64) for _ in range(3)]
        for _ in range(2):
            for begun in [sums.start(bucket) for bucket in buckets]:
                sums.finish(begun)
            buckets[1].renew()
        most = mapped()
        del buckets, begun
        if turn in (0, TIMES):
            counts.append((descriptors(), mapped(), most))
    return counts[0], counts[1]


def test_memory_of_dropped_buckets_is_given_back_by_peers_too(pool: Any) -> None:
    for first, last in pool(3).run(held_by_buckets, "given back"):
        assert first == last
        assert last[2] >= last[1] + 3 * 3  # while they lived: each worker's of three buckets


def killed_with_memory(group: Group) -> None:
    sums = Reductions(PrefixStore("killed", group._store), group.rank, group.world)
    sums.finish(sums.start(sums.allocate(1 << 20, torch.float32)))


def test_nothing_is_left_of_workers_that_were_killed() -> None:
    before = set(shared_memory())
    with alone(2) as pool:
        pool.run(killed_with_memory)
        assert not left_since(before)
        pool.kill(0)
        pool.kill(1)
    assert not left_since(before)
