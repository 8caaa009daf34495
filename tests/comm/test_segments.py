"""Values through shared memory: what comes out on every worker is what each put in, and nothing stays behind."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from shm import left_since, shared_memory

from paceline.comm.group import Group
from paceline.comm.shm_exchange import START, Segments
from paceline.settings import RunSettings, WorkerSettings

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
DTYPES += (torch.complex64,)


class Point(NamedTuple):
    x: Any
    y: Any


def value_of(rank: int) -> Any:
    """All kinds of things that a collated batch may hold."""
    tensors = [(torch.arange(6).view(2, 3) + rank).to(dtype) for dtype in DTYPES]
    return {
        "tensors": tensors,
        "odd": (torch.empty(0, 4), torch.tensor(rank), torch.arange(12).view(3, 4).t(), torch.arange(8)[::2]),
        "array": np.arange(5, dtype=np.int16) + rank,
        "texts": ["a" * rank, "ü"],
        "point": Point(torch.ones(rank), None),
        "number": rank / 2,
        "sparse": torch.eye(3).to_sparse(),
    }


def exchanged(group: Group) -> tuple[list[Any], list[int]]:
    values, flags = Segments(group).exchange(value_of(group.rank), group.rank * 10, "a test")
    return [kept(value) for value in values], flags


def kept(value: Any) -> Any:
    """Copies, since what was exchanged lives in shared memory."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.clone() if isinstance(value, torch.Tensor) else value.copy()
    if isinstance(value, dict):
        return {key: kept(item) for key, item in value.items()}
    if isinstance(value, Point):
        return Point(*map(kept, value))
    return type(value)(map(kept, value)) if isinstance(value, list | tuple) else value


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype is b.dtype and a.shape == b.shape and torch.equal(a.to_dense(), b.to_dense())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("world", [2, 3])
def test_every_worker_gets_every_value_and_flag(pool: Any, world: int) -> None:
    for values, flags in pool(world).run(exchanged):
        assert flags == [rank * 10 for rank in range(world)]
        assert all(same(found, value_of(rank)) for rank, found in enumerate(values))


def test_with_one_worker_a_value_comes_back() -> None:
    group = Group(WorkerSettings(run=RunSettings(script=""), record=""))
    values, flags = Segments(group).exchange(value_of(1), 3, "a test")
    assert flags == [3]
    assert same(kept(values[0]), value_of(1))


def exchanged_many(group: Group, rounds: int) -> list[bool]:
    segments, right = Segments(group), []
    for i in range(rounds):
        values, _ = segments.exchange(torch.full((100,), i * 10 + group.rank), 0, "a test")
        right.append(all(bool((value == i * 10 + rank).all()) for rank, value in enumerate(values)))
    return right


def test_a_writer_never_overtakes_a_reader(pool: Any) -> None:
    assert pool(3).run(exchanged_many, 200) == [[True] * 200] * 3


def read_late(group: Group) -> tuple[bool, bool]:
    """What was received is still good after the next exchange."""
    segments = Segments(group)
    first, _ = segments.exchange(torch.full((50,), group.rank), 0, "a test")
    second, _ = segments.exchange(torch.full((50,), 100 + group.rank), 0, "a test")
    return (
        all(bool((value == rank).all()) for rank, value in enumerate(first)),
        all(bool((value == 100 + rank).all()) for rank, value in enumerate(second)),
    )


def test_a_value_is_good_until_the_next_but_one(pool: Any) -> None:
    assert pool(2).run(read_late) == [(True, True)] * 2


def exchanged_growing(group: Group) -> list[bool]:
    """Small, larger than a segment, small again, larger still; another size on each worker."""
    segments, right = Segments(group), []
    for size in (10, START + 1, 10, 3 * START, START):
        values, _ = segments.exchange(torch.full((size + group.rank,), size, dtype=torch.int32), 0, "a test")
        right.append(all(v.shape == (size + r,) and bool((v == size).all()) for r, v in enumerate(values)))
    return right


def test_segments_grow_with_what_they_hold(pool: Any) -> None:
    assert pool(2).run(exchanged_growing) == [[True] * 5] * 2


def descriptors_used(group: Group) -> int:
    segments = Segments(group)
    segments.exchange(None, 0, "a test")
    before = len(os.listdir("/proc/self/fd"))
    for size in (10, 2 * START, 8 * START, 32 * START):
        segments.exchange(torch.zeros(size, dtype=torch.uint8), 0, "a test")
    segments.exchange(None, 0, "a test")
    segments.exchange(None, 0, "a test")
    return len(os.listdir("/proc/self/fd")) - before


def test_outgrown_segments_are_let_go(pool: Any) -> None:
    """A descriptor of its own memory, and a mapping of each worker's: however often a segment has grown."""
    assert max(pool(2).run(descriptors_used)) <= 0


def test_nothing_is_left_in_shared_memory(pool: Any) -> None:
    before = shared_memory()
    pool(2).run(exchanged_growing)
    assert not left_since(before)
