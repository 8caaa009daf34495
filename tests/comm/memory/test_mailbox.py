"""Messages between two workers: any size, any order of tags, both ways at once, from anybody."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from worlds import BUFFER, World, Worlds

from paceline.errors import PartedError

SIZES = (0, 1, 7, BUFFER // 8, BUFFER // 4, BUFFER // 4 + 1, 5 * BUFFER)


def numbers(seed: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def blocking(world: World) -> bool:
    """Round the ring, one size after the other; even ranks send first."""
    group, to, source = world.ours[0], (world.rank + 1) % 4, (world.rank - 1) % 4
    well = True
    for numel in SIZES:
        got = torch.empty(numel)
        if world.rank % 2 == 0:
            dist.send(numbers(world.rank, numel), to, group=group)
        assert dist.recv(got, source, group=group) == source
        if world.rank % 2:
            dist.send(numbers(world.rank, numel), to, group=group)
        well = well and torch.equal(got, numbers(source, numel))
    return well


def test_messages_of_any_size_arrive(worlds: Worlds) -> None:
    assert worlds.run(blocking) == [True] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bool, torch.int64, torch.complex64, torch.uint16], ids=str)
def test_messages_of_any_dtype_arrive(worlds: Worlds, dtype: torch.dtype) -> None:
    assert worlds.run(in_dtype, dtype) == [True] * 4


def in_dtype(world: World, dtype: torch.dtype) -> bool:
    if not world.has(2):
        return True
    group, matrix = world.ours[2], torch.arange(600).reshape(20, 30).to(dtype)
    if world.rank == 1:
        dist.send(matrix.t(), 3, group=group)  # with gaps
        return True
    got = torch.zeros(60, 20, dtype=dtype)[::2]
    dist.recv(got, 1, group=group)
    return torch.equal(got, matrix.t())


def all_at_once(world: World, messages: list[tuple[int, int, int, int]], seed: int) -> list[str]:
    """Everybody posts all of its sends and receives in an order of its own, and waits in another. Messages of one pair
    and tag keep their order: those are posted as they come in the list."""
    rng, group = random.Random(seed * 10 + world.rank), world.ours[0]
    sends = [(index, message) for index, message in enumerate(messages) if message[0] == world.rank]
    receives = [(index, message) for index, message in enumerate(messages) if message[1] == world.rank]
    todo = shuffled(rng, sends, key=lambda m: (m[1], m[2])) + shuffled(rng, receives, key=lambda m: (m[0], m[2]))
    works, buffers = [], dict[int, torch.Tensor]()
    for index, (source, to, tag, numel) in todo:
        if source == world.rank:
            works.append(dist.isend(numbers(index, numel), to, group=group, tag=tag))
        else:
            buffers[index] = torch.empty(numel)
            works.append(dist.irecv(buffers[index], source, group=group, tag=tag))
    rng.shuffle(works)
    for work in works:
        work.wait()
    return [
        f"message {index}: {messages[index]}"
        for index, buffer in buffers.items()
        if not torch.equal(buffer, numbers(index, buffer.numel()))
    ]


def shuffled(rng: random.Random, messages: Any, key: Any) -> Any:
    """In another order, but those with the same key among themselves as they were."""
    places: dict[Any, list[Any]] = {}
    for each in messages:
        places.setdefault(key(each[1]), []).append(each)
    order = [key(each[1]) for each in messages]
    rng.shuffle(order)
    return [places[each].pop(0) for each in order]


MESSAGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from(SIZES)).filter(
        lambda message: message[0] != message[1]
    ),
    min_size=1,
    max_size=12,
)


@given(messages=MESSAGES, seed=st.integers(0, 1000))
def test_messages_posted_in_any_order_reach_their_receivers(worlds: Worlds, messages: Any, seed: int) -> None:
    assert worlds.run(all_at_once, messages, seed) == [[]] * 4


def both_ways(world: World) -> bool:
    """Large ones: neither would fit what two workers share, so both must read while they write."""
    group, other, numel = world.ours[0], world.rank ^ 1, 300_000
    got = [torch.empty(numel) for _ in range(2)]
    works = [dist.isend(numbers(world.rank * 10 + turn, numel), other, group=group) for turn in range(2)]
    works += [dist.irecv(each, other, group=group) for each in got]
    for work in works:
        work.wait()
    return all(torch.equal(each, numbers(other * 10 + turn, numel)) for turn, each in enumerate(got))


def test_large_messages_pass_each_other(worlds: Worlds) -> None:
    assert worlds.run(both_ways) == [True] * 4


def tags_out_of_order(world: World) -> list[float]:
    if world.rank == 0:
        for tag in (3, 1, 2):
            dist.send(torch.full((5000,), float(tag)), 2, group=world.ours[0], tag=tag)
    if world.rank == 2:
        got = torch.empty(3, 5000)
        for tag in (1, 2, 3):
            dist.recv(got[tag - 1], 0, group=world.ours[0], tag=tag)
        return got.unique(dim=1).flatten().tolist()
    return []


def test_a_message_is_found_by_its_tag(worlds: Worlds) -> None:
    assert worlds.run(tags_out_of_order)[2] == [1.0, 2.0, 3.0]


def answers_before_the_first(world: World) -> list[float]:
    """A receive that was posted first is answered last, after a conversation under another tag."""
    group, one = world.ours[1], torch.empty(1)
    if world.rank == 0:
        first = torch.empty(1)
        work = dist.irecv(first, 1, group=group, tag=1)
        dist.irecv(one, 1, group=group, tag=2).wait()
        dist.send(one + 1, 1, group=group, tag=3)
        work.wait()
        return [first.item(), one.item()]
    if world.rank == 1:
        dist.send(torch.tensor([5.0]), 0, group=group, tag=2)
        dist.recv(one, 0, group=group, tag=3)
        dist.send(one + 1, 0, group=group, tag=1)
    return []


def test_receives_of_other_tags_do_not_wait_for_each_other(worlds: Worlds) -> None:
    assert worlds.run(answers_before_the_first)[0] == [7.0, 5.0]


def from_anybody(world: World) -> list[Any]:
    group = world.ours[0]
    if world.rank:
        dist.send(torch.full((3000,), -1.0), 0, group=group, tag=9)  # of another tag, in the way
        dist.send(torch.full((2000,), float(world.rank)), 0, group=group, tag=4)
        return []
    got, sources = torch.empty(2000), []
    for _ in range(3):
        source = dist.recv(got, group=group, tag=4)
        sources.append(source)
        assert bool((got == source).all())
    for source in (1, 2, 3):
        dist.recv(torch.empty(3000), source, group=group, tag=9)
    return sorted(sources)


def test_a_message_from_anybody(worlds: Worlds) -> None:
    assert worlds.run(from_anybody)[0] == [1, 2, 3]


def from_anybody_and_somebody(world: World) -> bool:
    """Receives from anybody and from one worker at the same time, several tags."""
    group = world.ours[0]
    if world.rank:
        for tag in (2, 1, 3) if world.rank == 1 else (3, 2, 1):
            dist.isend(torch.full((2000,), 10.0 * tag + world.rank), 0, group=group, tag=tag).wait()
        return True
    got = {(tag, turn): torch.empty(2000) for tag in (1, 2, 3) for turn in (1, 2, 3)}
    works = []
    for tag, turn in got:
        source = None if tag == 2 else turn
        works.append(dist.irecv(got[tag, turn], source, group=group, tag=tag))
    for work in works:
        work.wait()
    named = all(bool((got[tag, turn] == 10.0 * tag + turn).all()) for tag in (1, 3) for turn in (1, 2, 3))
    return named and sorted(float(got[2, turn][0]) for turn in (1, 2, 3)) == [21.0, 22.0, 23.0]


def test_receives_from_anybody_stand_beside_others(worlds: Worlds) -> None:
    assert worlds.run(from_anybody_and_somebody) == [True] * 4


def batched(world: World) -> bool:
    group, to, source = world.ours[0], (world.rank + 1) % 4, (world.rank - 1) % 4
    got = [torch.empty(2000), torch.empty(3)]
    operations = [
        dist.P2POp(dist.isend, numbers(world.rank, 2000), to, group),
        dist.P2POp(dist.irecv, got[0], source, group),
        dist.P2POp(dist.isend, numbers(world.rank + 10, 3), source, group),
        dist.P2POp(dist.irecv, got[1], to, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return torch.equal(got[0], numbers(source, 2000)) and torch.equal(got[1], numbers(to + 10, 3))


def test_batches_of_messages(worlds: Worlds) -> None:
    assert worlds.run(batched) == [True] * 4


def many_tags(world: World) -> bool:
    """A tag for every step, as some scripts have it."""
    group, got = world.ours[1], torch.empty(1)
    if not world.has(1):
        return True
    for step in range(300):
        if world.rank == 0:
            dist.send(torch.tensor([float(step)]), 1, group=group, tag=step)
        else:
            dist.recv(got, 0, group=group, tag=step)
            assert got.item() == step
    return True


def test_a_tag_for_every_step(worlds: Worlds) -> None:
    assert worlds.run(many_tags) == [True] * 4


def wrong_size(world: World) -> str:
    group = world.ours[2]
    text = ""
    if world.rank == 1:
        for numel in (3, 4, 5000):
            dist.send(torch.ones(numel), 3, group=group)
    if world.rank == 3:
        with pytest.raises(PartedError) as caught:
            dist.recv(torch.empty(5), 1, group=group)
        text = str(caught.value)
        dist.recv(torch.empty(4), 1, group=group)  # those after it are received
        dist.recv(torch.empty(5000), 1, group=group)
    return text


def test_a_message_of_another_size_is_told_to_its_receiver(worlds: Worlds) -> None:
    text = worlds.run(wrong_size)[3]
    assert "Worker 1 sent 12 bytes, but worker 3 expects 20" in text
    assert "test_mailbox.py:" in text
