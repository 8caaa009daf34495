"""Workers that call different collectives are told so, all of them, with both places in the script."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone
from torch._C._distributed_c10d import PrefixStore
from worlds import join

from paceline.comm.group import Group
from paceline.comm.memory import shm_rendezvous
from paceline.comm.memory.engine import MemoryEngine
from paceline.errors import PartedError, UsageError

CLONE_NEWNET = 0x40000000
HEAR_OUT = 30.0  # seconds: what is played here fails nobody on a busy machine


def call_one(what: str, rank: int) -> Any:
    """The last worker does otherwise."""
    odd = rank == dist.get_world_size() - 1
    later = what.endswith(", later")
    group_size = dist.get_world_size()
    match what.removesuffix(", later"):
        case "operation":
            tensor = torch.ones(10)
            return dist.broadcast(tensor, 0, async_op=later) if odd else dist.all_reduce(tensor, async_op=later)
        case "size":
            return dist.all_reduce(torch.ones(11 if odd else 10), async_op=later)
        case "size, of which one is large":
            return dist.all_reduce(torch.ones(10 if odd else 3_000_000), async_op=later)
        case "dtype":
            return dist.all_reduce(torch.ones(10, dtype=torch.int32 if odd else torch.float32), async_op=later)
        case "order":
            first, second = (torch.ones(3), torch.ones(4))[:: -1 if odd else 1]
            works = [dist.all_reduce(first, async_op=later), dist.all_reduce(second, async_op=later)]
            return works[0]
        case "root":
            return dist.broadcast(torch.ones(10), 1 if odd else 0, async_op=later)
        case "root of a reduction":
            return dist.reduce(torch.ones(10), 1 if odd else 0, async_op=later)
        case "what it is reduced by":
            op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
            return dist.all_reduce(torch.ones(10), op, async_op=later)
        case "what parts are reduced by":
            op = dist.ReduceOp.AVG if odd else dist.ReduceOp.SUM
            return dist.reduce_scatter(torch.ones(1), [torch.ones(1)] * group_size, op, async_op=later)
        case "one more":
            return None if odd and dist.barrier() is None else dist.all_reduce(torch.ones(3), async_op=later)
        case "parts":
            sizes = [1, 3] if odd else [2, 2]
            sizes += [1] * (group_size - 2)
            outputs = [torch.ones(size) for size in sizes]
            return dist.all_gather(outputs, torch.ones(sizes[rank]), async_op=later)
        case "splits":
            splits = [2] * group_size
            output = torch.ones(2 * group_size + (group_size if odd else 0))
            wanted = [3] * group_size if odd else splits
            return dist.all_to_all_single(output, torch.ones(2 * group_size), wanted, splits, async_op=later)
        case "all_to_all against all_gather":
            outputs = [torch.ones(2) for _ in range(group_size)]
            if odd:
                return dist.all_gather(outputs, torch.ones(2), async_op=later)
            return dist.all_to_all(outputs, [torch.ones(2) for _ in range(group_size)], async_op=later)
    raise AssertionError(what)


def call_and_wait(what: str, rank: int) -> None:
    work = call_one(what, rank)
    if work is not None:
        work.wait()


def parted(group: Group, what: str) -> tuple[str, float]:
    shm_rendezvous.HEAR_OUT = HEAR_OUT
    join(group, "paceline")
    dist.all_reduce(torch.ones(3))
    began = time.monotonic()
    with pytest.raises(PartedError) as caught:
        call_and_wait(what, group.rank)
    took = time.monotonic() - began
    with pytest.raises(PartedError):
        dist.barrier()  # nothing is to be had from this group any more
    with pytest.raises(PartedError):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    return str(caught.value), took


SYNCHRONOUS = (
    "operation",
    "size",
    "size, of which one is large",
    "dtype",
    "order",
    "root",
    "root of a reduction",
    "what it is reduced by",
    "what parts are reduced by",
    "one more",
    "parts",
    "splits",
    "all_to_all against all_gather",
)


LATER = ("operation, later", "size, later", "dtype, later", "order, later")
CASES = [(what, 2) for what in (*SYNCHRONOUS, *LATER)]
CASES += [(what, 3) for what in ("operation", "size, later", "parts", "splits")]


@pytest.mark.parametrize(("what", "world"), CASES)
def test_all_are_told_with_every_place(what: str, world: int) -> None:
    with alone(world) as pool:
        found = pool.run(parted, what)
    for text, took in found:
        assert len(re.findall(r"worker \d: [^;]*test_parted\.py:\d+", text)) == world, text
        assert took < HEAR_OUT, "told when all have said what they called, and not when nobody waits any more"
    # All say the same of each other.
    assert len({text for text, _ in found}) == 1
    assert "all workers must make the same collectives" in found[0][0]


def test_the_words_say_what_differed() -> None:
    with alone(2) as pool:
        text = pool.run(parted, "dtype")[0][0]
    assert "worker 0: all_reduce of 10 float32 at" in text
    assert "worker 1: all_reduce of 10 int32 at" in text


def in_a_subset(group: Group) -> str:
    join(group, "gloo")
    subset = dist.new_group([2, 0], backend="paceline")
    if group.rank == 1:
        return ""
    with pytest.raises(PartedError) as caught:
        dist.all_reduce(torch.ones(group.rank + 1), group=subset)
    return str(caught.value)


def test_workers_of_a_subset_go_by_their_names_in_the_world() -> None:
    with alone(3) as pool:
        texts = pool.run(in_a_subset)
    assert "worker 0: all_reduce of 1 float32" in texts[0]
    assert "worker 2: all_reduce of 3 float32" in texts[0]


# -- those who have not parted are left alone --------------------------------------------------------------------------


def slow_readers(group: Group) -> None:
    """One worker takes its time before each wait: the others are by then as far ahead as they can be."""
    engine = MemoryEngine(PrefixStore("slow", group._store), group.rank, group.world)
    meeting = engine._meeting
    wait = meeting.wait

    def late(peer: int) -> None:
        time.sleep(0.002)
        wait(peer)

    if group.rank == 1:
        meeting.wait = late  # type: ignore[method-assign]
    pieces = [torch.ones(3) for _ in range(group.world)]
    for _ in range(10):
        engine.barrier()
        engine.all_to_all(pieces, [torch.empty(3) for _ in range(group.world)])
        engine.all_reduce(torch.ones(5))
        assert engine.gather_sizes(group.rank) == list(range(group.world))


def test_a_slow_worker_is_no_other_one(pool: Any) -> None:
    pool(3).run(slow_readers)


# -- several hosts -----------------------------------------------------------------------------------------------------


def in_another_network(group: Group) -> str:
    if group.rank == 1 and ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        assert ctypes.get_errno() == errno.EPERM
        os._exit(77)
    with pytest.raises(UsageError) as caught:
        join(group, "paceline")
    return str(caught.value)


def test_a_group_over_two_networks_is_refused() -> None:
    with alone(2) as pool:
        try:
            texts = pool.run(in_another_network)
        except RuntimeError as error:
            if "died" in str(error):
                pytest.skip("a network of its own needs the right to make one")
            raise
    for text in texts:
        assert "processes 0 and 1 are not on one host" in text
        assert 'Use backend="gloo"' in text
