"""Collectives that are waited for later: their order, their futures, and what hangs on them."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor
from worlds import World, Worlds

from paceline.comm.torch_backend.backend import MessageQueues, Queue, Work


def many(world: World, numel: int) -> bool:
    """Begun at once, waited for backwards, with one in between that is waited for at once."""
    tensors = [torch.full((numel,), float(index + world.rank)) for index in range(20)]
    works = [dist.all_reduce(tensor, group=world.ours[0], async_op=True) for tensor in tensors]
    between = torch.full((numel,), 100.0 + world.rank)
    dist.all_reduce(between, group=world.ours[0])
    ahead = all(work.is_completed() for work in works)  # it came after them
    for work in reversed(works):
        assert work.wait() is True
        assert work.is_success()
    sums = all(bool((tensor == 4.0 * index + 6.0).all()) for index, tensor in enumerate(tensors))
    return ahead and sums and bool((between == 406.0).all())


@pytest.mark.parametrize("numel", [1, 3000])
def test_many_may_be_under_way_and_are_run_in_order(worlds: Worlds, numel: int) -> None:
    assert worlds.run(many, numel) == [True] * 4


def futures(world: World) -> list[Any]:
    tensor = torch.full((2000,), world.rank + 1.0)
    work = dist.all_reduce(tensor, group=world.ours[0], async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    found = [doubled.wait().unique().tolist(), work.get_future().wait()[0] is tensor]
    late = work.get_future().then(lambda future: future.value()[0].sum().item())  # it has ended long ago
    barrier = dist.barrier(group=world.ours[0], async_op=True).get_future()
    barrier.wait()
    return [*found, late.wait(), barrier.done()]


def test_futures_hold_the_tensors(worlds: Worlds) -> None:
    assert worlds.run(futures) == [[[20.0], True, 20_000.0, True]] * 4


def chained(world: World) -> list[float]:
    """As compressing hooks do: what hangs on one collective begins others and waits for them."""
    group, first, second, third = world.ours[0], torch.ones(5), torch.ones(3000), torch.ones(2)

    def go_on(future: Any) -> float:
        dist.all_reduce(second, group=group, async_op=True).get_future().then(go_on_again).wait()
        dist.all_reduce(second, group=group)
        return float(future.value()[0][0])

    def go_on_again(future: Any) -> None:
        dist.all_reduce(third, group=group, async_op=True).wait()

    value = dist.all_reduce(first, group=group, async_op=True).get_future().then(go_on).wait()
    return [value, *second.unique().tolist(), *third.tolist()]


def test_what_hangs_on_a_collective_may_wait_for_others(worlds: Worlds) -> None:
    assert worlds.run(chained) == [[4.0, 16.0, 4.0, 4.0]] * 4


def without_gradients(world: World) -> bool:
    group = world.ours[0]
    with torch.inference_mode():
        tensor = torch.ones(3000)
        dist.all_reduce(tensor, group=group)
        works = [dist.all_reduce(tensor, group=group, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
        gathered = all_gather_tensor(torch.full((2,), float(world.rank)), 0, group).tolist()
    after = torch.ones(3000, dtype=torch.float16)
    dist.all_reduce(after, group=group)
    parameter = torch.ones(3000, requires_grad=True)
    dist.all_reduce(parameter, group=group)
    assert parameter.is_leaf
    assert gathered == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    return bool((tensor == 64.0).all() and (after == 4.0).all() and (parameter == 4.0).all())


def test_collectives_in_inference_mode_and_on_parameters(worlds: Worlds) -> None:
    assert worlds.run(without_gradients) == [True] * 4


def from_threads(world: World) -> bool:
    """Two threads, each with a group of its own, as engines of pipelines have."""
    groups, found = world.ours[:4], dict[int, bool]()

    def work(index: int) -> None:
        if not world.has(index):
            return
        size, tensor = dist.get_world_size(groups[index]), torch.ones(1000)
        for _ in range(5):
            dist.all_reduce(tensor, group=groups[index])
        found[index] = bool((tensor == size**5).all())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(found.values()) and len(found) == sum(world.has(index) for index in range(4))


def test_threads_may_use_groups_of_their_own(worlds: Worlds) -> None:
    assert worlds.run(from_threads) == [True] * 4


def impatient(world: World) -> list[str]:
    """Rank 0 gives up waiting before the others have begun; then all go on."""
    group, tensor, said = world.ours[0], torch.ones(3), list[str]()
    if world.rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        try:
            work.wait(timedelta(milliseconds=20))
        except RuntimeError as error:
            said.append(str(error))
    dist.barrier(group=world.gloo[0])
    if world.rank != 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
    assert work.wait(timedelta(seconds=600))
    assert work.wait(timedelta(0))  # torch's way to say: no limit
    assert tensor.tolist() == [4.0] * 3
    dist.all_reduce(tensor, group=group)
    return [*said, str(tensor.tolist())]


def test_a_wait_ends_at_its_timeout_and_the_group_stays_usable(worlds: Worlds) -> None:
    first, *others = worlds.run(impatient)
    assert others == [["[16.0, 16.0, 16.0]"]] * 3
    told, numbers = first
    assert numbers == "[16.0, 16.0, 16.0]"
    assert "timed out" in told
    assert "all_reduce started at " in told
    assert "test_works.py:" in told
    assert "0.02 s" in told


# -- the queue itself --------------------------------------------------------------------------------------------------


def test_what_a_work_raised_its_waiters_and_its_future_raise() -> None:
    queue, work = Queue("a test", lambda site: None), Work([1])
    gate = threading.Event()

    def fail() -> None:
        gate.wait()
        raise LookupError("gone")

    queue.run(work, fail, later=True)
    future = work.get_future()
    gate.set()
    with pytest.raises(LookupError, match="gone"):
        work.wait()
    with pytest.raises(RuntimeError, match="LookupError: gone"):
        future.wait()
    assert not work.is_success()
    assert work.is_completed()
    with pytest.raises(LookupError, match="now"):
        queue.run(Work(None), _raise_now, later=False)
    assert queue.run(Work(None), lambda: None, later=True).wait()  # the queue goes on
    queue.close()


def _raise_now() -> None:
    raise LookupError("now")


def test_the_place_of_a_later_call_is_where_it_was_begun() -> None:
    sites: list[Any] = []
    queue = Queue("a test", lambda site: sites.append(site()))
    queue.run(Work(None), lambda: None, later=True).wait()
    queue.close()
    assert sites[0].split(":")[0].endswith("test_works.py")


def test_a_callback_may_ask_for_the_future_again() -> None:
    queue, work, gate = Queue("a test", lambda site: None), Work([7]), threading.Event()
    queue.run(work, gate.wait, later=True)
    again = work.get_future().then(lambda future: work.get_future().value()[0])
    gate.set()
    assert again.wait() == 7
    queue.close()


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"paceline {name}"]


def test_threads_end_with_the_queue_after_its_last_work() -> None:
    queue, gate, done = Queue("that ends", lambda site: None), threading.Event(), list[int]()
    for number in range(3):
        queue.run(Work(None), lambda number=number: (gate.wait(), done.append(number)), later=True)  # type: ignore[misc]
    threads = named("that ends")
    queue.close()
    gate.set()
    for thread in threads:
        thread.join(60)
    assert done == [0, 1, 2]
    assert named("that ends") == []


def test_tags_do_not_wait_for_each_other_and_share_threads_where_they_can() -> None:
    lines, gate, done = MessageQueues("tags", lambda site: None), threading.Event(), list[str]()
    held = lines.run(1, Work(None), gate.wait)
    behind = lines.run(1, Work(None), lambda: done.append("tag 1"))
    for tag in range(2, 50):
        lines.run(tag, Work(None), lambda tag=tag: done.append(f"tag {tag}")).wait()  # type: ignore[misc]
        while not lines._queues[-1][1].is_idle:
            time.sleep(0.001)
    assert done == [f"tag {tag}" for tag in range(2, 50)]
    assert len(named("tags")) == 2
    gate.set()
    held.wait()
    behind.wait()
    assert done[-1] == "tag 1"
    lines.close()
