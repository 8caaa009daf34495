"""Workers that end: the others notice soon, wherever they are, and nobody is missed who has done its part."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import Pool, alone
from shm import left_since, shared_memory
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from worlds import BUFFER, join, make_tiny

from paceline.comm.group import Group
from paceline.comm.memory.reductions import Reductions
from paceline.comm.memory.shm_rendezvous import Meeting
from paceline.errors import PeerLostError

VICTIM = 2
SOON = 20.0  # seconds: under five by itself, and what a busy machine adds to it


def survivors(pool: Pool, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What the others answer, after the victim has ended itself."""
    for _, pipe in pool._workers.values():
        pipe.send_bytes(pickle.dumps((function, args)))
    pid, pipe = pool._workers[VICTIM]
    assert pipe.poll(60.0), "the victim lives"
    with pytest.raises((EOFError, ConnectionResetError)):  # the end of its pipe, and no answer
        raise AssertionError(pickle.loads(pipe.recv_bytes()))
    os.waitpid(pid, 0)
    pipe.close()
    del pool._workers[VICTIM]
    answers, errors = pool._receive(60.0, grace=60.0)
    for error in errors.values():
        raise error
    return [answers[rank] for rank in sorted(answers)]


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_at_signal(number: int) -> None:
    """Of this worker: instead of its next but so many."""
    plain, left = Meeting.signal, [number]

    def post(meeting: Meeting) -> None:
        left[0] -= 1
        if left[0] < 0:
            end()
        plain(meeting)

    Meeting.signal = post  # type: ignore[method-assign]


def fall(group: Group, where: str) -> None:
    """The victim's end; the others' call."""
    if where.startswith("sum"):
        fall_in_sum(group, where)
        return
    tensor, is_victim = torch.ones(3000), group.rank == VICTIM
    if is_victim and where == "before an all_reduce":
        end()
    if is_victim and where.startswith("in the first half"):
        end_at_signal(0)
    if is_victim and where == "in the second half of an all_reduce":
        end_at_signal(1)
    if is_victim and where == "in a later round of an all_reduce":
        end_at_signal(3)
    match where.split(" of ")[-1].removeprefix("before ").removeprefix("in "):
        case "an all_reduce":
            dist.all_reduce(tensor)
        case "an all_reduce that is waited for later":
            works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
            works[2].wait()
        case "an all_reduce whose future is waited for":
            dist.all_reduce(tensor, async_op=True).get_future().wait()
        case "DDP's backward":
            model = nn.parallel.DistributedDataParallel(nn.Linear(50, 50))
            loss = model(torch.ones(2, 50)).sum()
            dist.barrier()
            if is_victim:
                end()
            loss.backward()
        case "a barrier":
            dist.barrier()
        case "a send":
            if is_victim:
                dist.recv(torch.empty(10 * BUFFER), 0)
                end()  # the second waits for room
            dist.send(torch.ones(10 * BUFFER), VICTIM)
            dist.send(torch.ones(10 * BUFFER), VICTIM)
        case "a receive":
            if is_victim:
                end()
            dist.recv(tensor, VICTIM)
        case "a receive that has begun":
            if is_victim:
                dist.isend(torch.ones(10 * BUFFER), 0)
                dist.isend(torch.ones(10 * BUFFER), 1)
                dist.recv(torch.empty(1), 0)  # sent when its first pieces have come
                end()
            if group.rank == 0:
                dist.isend(torch.empty(1), VICTIM)
            dist.recv(torch.empty(10 * BUFFER), VICTIM)
            dist.recv(torch.empty(1), VICTIM)
        case "a receive from anybody":
            if is_victim:
                end()
            dist.recv(tensor)
        case _:
            raise AssertionError(where)


def fall_in_sum(group: Group, where: str) -> None:
    sums = Reductions(PrefixStore("sums", group._store), group.rank, group.world)
    buckets = [sums.allocate(1000, torch.float32) for _ in range(3)]
    if group.rank == VICTIM and where == "sum that it never started":
        end()
    begun = [sums.start(bucket, "the gradient of a.weight") for bucket in buckets]
    if group.rank == VICTIM and where == "sum that it started":
        end()
    if group.rank == VICTIM:
        end_at_signal(1)  # has added up one of them
    time.sleep(0.05 if where == "sum that it started" else 0.0)  # mostly after its end: its memory is gone, too
    for each in begun:
        sums.finish(each)


def outlive(group: Group, where: str) -> tuple[str, float]:
    make_tiny()
    join(group, "paceline")
    dist.barrier()
    began = time.monotonic()
    # Torch's futures tell errors by their words.
    with pytest.raises((PeerLostError, RuntimeError)) as caught:
        fall(group, where)
    assert "PeerLostError" in repr(caught.value)
    return str(caught.value), time.monotonic() - began


@pytest.mark.parametrize(
    "where",
    [
        "before an all_reduce",
        "in the first half of an all_reduce",
        "in the second half of an all_reduce",
        "in a later round of an all_reduce",
        "in the first half of an all_reduce that is waited for later",
        "in the first half of an all_reduce whose future is waited for",
        "in DDP's backward",
        "in the first half of a barrier",
        "in a send",
        "in a receive",
        "in a receive that has begun",
        "in a receive from anybody",
        "sum that it never started",
        "sum that it started",
        "sum that it had in hand",
    ],
)
def test_the_others_are_told_soon(where: str) -> None:
    before = shared_memory()
    with alone(3) as pool:
        if where == "in a send":
            told = survivors(pool, outlive_send, where)[:1]
        else:
            told = survivors(pool, outlive, where)
    assert not left_since(before)
    for text, took in told:
        assert "has ended" in text
        assert took < SOON
        if where != "sum that it started":  # where its process is named, whose memory is gone
            assert "Worker 2" in text
            assert "test_lost_peers.py:" in text


def outlive_send(group: Group, where: str) -> tuple[str, float]:
    """Worker 1 has no part in it."""
    if group.rank != 1:
        return outlive(group, where)
    make_tiny()
    join(group, "paceline")
    dist.barrier()
    return "", 0.0


# -- who has done its part is not missed -------------------------------------------------------------------------------


def finish_without_it(group: Group, what: str) -> bool:
    make_tiny()
    join(group, "paceline")
    tensor, is_victim = torch.full((3000,), group.rank + 1.0), group.rank == VICTIM
    match what:
        case "an all_reduce, while worker 0 is late" | "an all_reduce, while worker 1 is late":
            tensor = tensor[:10].clone()  # small: all is said with the first signal
            if is_victim:
                Meeting.wait = lambda meeting, peer: end()  # type: ignore[method-assign]
            if str(group.rank) in what:
                time.sleep(0.7)  # longer than the others wait without looking round
            dist.all_reduce(tensor)
        case "the last of an all_reduce":
            dist.all_reduce(tensor)
        case "a message":
            if is_victim:
                for rank in (0, 1):
                    dist.send(torch.full((BUFFER // 4,), 6.0), rank)
                    dist.send(torch.full((BUFFER // 4,), 6.0), rank, tag=1)
                end()
            while not group_has_lost(group, VICTIM):
                time.sleep(0.01)
            tensor = torch.empty(BUFFER // 4)
            dist.recv(tensor, VICTIM)
            assert dist.recv(tensor, tag=1) == VICTIM
    if is_victim:
        end()
    return bool((tensor == 6.0).all())


def group_has_lost(group: Group, rank: int) -> bool:
    return rank in dist.distributed_c10d._get_default_group()._mail._meeting.gone()


@pytest.mark.parametrize(
    "what",
    [
        "an all_reduce, while worker 0 is late",
        "an all_reduce, while worker 1 is late",
        "the last of an all_reduce",
        "a message",
    ],
)
def test_a_worker_that_ends_after_its_part_is_not_missed(what: str) -> None:
    with alone(3) as pool:
        assert survivors(pool, finish_without_it, what) == [True, True]


# -- waiting -----------------------------------------------------------------------------------------------------------


def waited(group: Group, what: str, seconds: float) -> tuple[float, float, float]:
    """When the late worker came, when this one was done, and its seconds of the processor until then."""
    if not dist.is_initialized():
        join(group, "paceline")
    dist.barrier()
    busy = time.process_time()
    if group.rank == 3:
        time.sleep(seconds)
    came = time.monotonic()  # one clock for all processes
    match what:
        case "all_reduce":
            dist.all_reduce(torch.ones(10))
        case "later":
            dist.all_reduce(torch.ones(10), async_op=True).wait()
        case "recv" if group.rank == 3:
            for rank in range(3):
                dist.send(torch.ones(1), rank)
        case "recv":
            dist.recv(torch.empty(1), 3)
        case "recv from anybody" if group.rank == 3:
            for rank in range(3):
                dist.send(torch.ones(1), rank)
        case "recv from anybody":
            dist.recv(torch.empty(1))
    return came, time.monotonic(), time.process_time() - busy


@pytest.mark.parametrize(
    "calls", [("all_reduce", "recv"), pytest.param(("later", "recv from anybody"), marks=pytest.mark.slow)], ids=str
)
def test_more_workers_than_cores_sleep_while_they_wait(calls: tuple[str, ...]) -> None:
    with alone(4) as pool:
        for what in calls:
            *others, (came, _, _) = pool.run(waited, what, 1.0)
            for _, done, busy in others:
                assert done > came
                assert busy < 0.3


def timed_out(group: Group) -> list[str]:
    make_tiny()
    join(group, "gloo")
    dist.barrier()  # nobody is late to the group itself
    few = dist.new_group([0, 1], backend="paceline", timeout=datetime.timedelta(seconds=1))
    texts = []
    for call in (
        lambda: dist.all_reduce(torch.ones(1), group=few),
        lambda: dist.recv(torch.ones(1), 1, group=few),
        lambda: dist.recv(torch.ones(1), group=few),
    ):
        if group.rank == 0:
            with pytest.raises(PeerLostError) as caught:
                call()
            texts.append(str(caught.value))
    dist.barrier()
    return texts


def test_a_timeout_is_kept() -> None:
    with alone(2) as pool:
        texts = pool.run(timed_out)[0]
    assert all("has waited 1 s for" in text and "test_lost_peers.py:" in text for text in texts)
