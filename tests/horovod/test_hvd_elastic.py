"""hvd.elastic: state that is committed and put back; training goes on with the ranks that are left."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest
import torch
from hvd_worlds import fresh, world
from pool import Pools, alone

import paceline.horovod.torch as hvd
from paceline.comm.group import Group
from paceline.settings import RunSettings, WorkerSettings, use
from paceline.wire.link import LinkStore, link_of_this_process


def commits(rank: int, size: int) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, float(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=rank + 1.0, momentum=0.9)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=rank + 5)
    state.sync()
    assert (model.weight.item(), optimizer.param_groups[0]["lr"], state.epoch) == (0.0, 1.0, 5)
    torch.nn.init.constant_(model.weight, 7.0)
    state.epoch = 6
    state.restore()
    assert (model.weight.item(), state.epoch) == (0.0, 5)
    torch.nn.init.constant_(model.weight, 8.0)
    state.epoch = 9
    state.commit()
    state.restore()
    assert (model.weight.item(), state.epoch) == (8.0, 9)
    state.model = torch.nn.Linear(2, 2)
    assert isinstance(state.model, torch.nn.Linear)


@pytest.mark.parametrize("size", [2, 3])
def test_commit_restore_and_sync(pool: Pools, size: int) -> None:
    world(pool, size).run(commits)


def samples(rank: int, size: int) -> None:
    sampler = hvd.elastic.ElasticSampler(list(range(13)), shuffle=True)
    every = hvd.allgather_object(list(sampler))
    assert {index for each in every for index in each} == set(range(13))
    assert len({len(each) for each in every}) == 1
    sampler.record_batch(0, 2)
    done = 2 * size
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    left = {index for each in hvd.allgather_object(list(sampler)) for index in each}
    assert len(left) == 13 - done
    sampler.set_epoch(1)
    assert len(sampler) == -(-13 // size)


@pytest.mark.parametrize("size", [2, 3])
def test_a_sampler_deals_out_what_is_left(pool: Pools, size: int) -> None:
    world(pool, size).run(samples)


def fails_once(rank: int, size: int) -> tuple[int, int, list[int]]:
    state = hvd.elastic.TorchState(step=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    tries = 0

    @hvd.elastic.run
    def train(state: Any) -> int:
        nonlocal tries
        tries += 1
        while state.step < 6:
            shape = 1 if tries > 1 or state.step != 3 else rank + 1  # differs between the ranks, once
            hvd.allreduce(torch.ones(shape), name="loss")
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
        return int(state.step)

    return train(state), tries, resets


def test_a_failed_operation_goes_on_from_the_last_commit() -> None:
    with fresh(2) as ranks:
        assert ranks.run(fails_once) == [(6, 2, [2])] * 2


def survive(group: Group) -> tuple[int, int, list[float]]:
    own = WorkerSettings(
        run=RunSettings(script="", workers=group.world),
        record="",
        rank=group.rank,
        world=group.world,
        local_rank=group.rank,
        local_world=group.world,
    )
    use(replace(own, run=replace(own.run, elastic=1)))
    hvd.init()
    state = hvd.elastic.TorchState(step=0, total=0.0)
    seen: list[float] = []

    @hvd.elastic.run
    def train(state: Any) -> int:
        while state.step < 8:
            if state.step == 4 and hvd.size() == 3 and group.rank == 1:
                link = link_of_this_process()
                assert link is not None
                LinkStore(link).set("left/1", "0,2")  # as the launcher does
                for line in hvd.mpi_ops.basics.controller()._lines.values():
                    line._socket.shutdown(socket.SHUT_RDWR)  # as the kernel does when a process is killed
                return -1
            seen.append(float(hvd.allreduce(torch.ones(1), name="loss", op=hvd.Sum)))
            state.step += 1
            state.commit()
        return int(state.step)

    return train(state), hvd.rank() if hvd.is_initialized() else -1, seen


def test_training_goes_on_with_the_ranks_that_are_left() -> None:
    with alone(3) as own:
        first, lost, last = own.run(survive)
    assert lost[0] == -1
    assert first == (8, 0, [3.0] * 4 + [2.0] * 4)
    assert last == (8, 1, [3.0] * 4 + [2.0] * 4)
