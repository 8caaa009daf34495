"""Random streams: the script's are equal on all workers and are put back; a worker's own differ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from paceline.comm.group import Group
from paceline.script import rng
from paceline.script.rng import OwnStream

# What `start` puts something else in the place of.
SEEDING: list[tuple[Any, str]] = [
    (np.random, "default_rng"),
    (np.random, "seed"),
    (np.random.bit_generator, "randbits"),
    (random, "seed"),
    (random.Random, "seed"),
    *((owner, name) for owner in (torch, torch.random) for name in ("seed", "manual_seed")),
    *((torch.cuda, name) for name in ("manual_seed", "manual_seed_all")),
]


@contextmanager
def seeding_as_before() -> Iterator[None]:
    plain, before = [getattr(owner, name) for owner, name in SEEDING], rng.snapshot()
    try:
        yield
    finally:
        for (owner, name), value in zip(SEEDING, plain, strict=True):
            setattr(owner, name, value)
        rng.restore(before)


@pytest.fixture(autouse=True)
def streams_as_before() -> Iterator[None]:
    with seeding_as_before():
        yield


def draw() -> list[float]:
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def test_the_same_seed_starts_the_same_streams() -> None:
    rng.start(7)
    first = draw()
    rng.start(7)
    assert draw() == first
    rng.start(8)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**40])
def test_any_seed_that_torch_takes_will_do(seed: int) -> None:
    rng.start(seed)


def test_a_scripts_own_seed_overrides() -> None:
    rng.start(7)
    torch.manual_seed(1)
    first = torch.rand(3)
    rng.start(8)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), first)


def unseeded(seed: int) -> list[Any]:
    """What a script gets that asks the operating system for seeds."""
    with seeding_as_before():
        rng.start(seed)
        found = [np.random.default_rng().random() for _ in range(3)]
        for reseed in (random.seed, np.random.seed, torch.seed, torch.random.seed):
            reseed()
            found += draw()
        return found


def test_seeds_that_the_system_would_give_come_from_the_run() -> None:
    first = unseeded(7)
    assert len(set(first[:3])) == 3, "generators differ among themselves"
    assert unseeded(7) == first
    assert all(a != b for a, b in zip(unseeded(8), first, strict=True))


def test_torch_says_which_seed_it_took() -> None:
    rng.start(7)
    seed = torch.seed()
    assert torch.initial_seed() == seed


def test_seeds_of_the_scripts_own_are_kept() -> None:
    with seeding_as_before():
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        expected = draw()
    rng.start(7)
    random.seed(3)
    np.random.seed(seed=3)
    torch.manual_seed(3)
    assert draw() == expected


def test_seeded_generators_of_numpy_stay_as_they_are() -> None:
    expected = np.random.default_rng(5).random()
    rng.start(7)
    assert np.random.default_rng(5).random() == expected
    assert np.random.default_rng(seed=5).random() == expected


def test_the_own_stream_leaves_the_scripts_where_it_was() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    own = OwnStream(0, rank=0)
    first = torch.rand(2)
    with own.inside():
        torch.rand(100)
    assert torch.equal(torch.cat([first, torch.rand(2)]), expected)


def test_the_own_stream_goes_on_from_call_to_call() -> None:
    own = OwnStream(0, rank=1)
    drawn = []
    for _ in range(3):
        with own.inside():
            drawn.append(torch.rand(4))
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_own_streams_differ_between_workers_and_from_the_script() -> None:
    drawn = []
    for rank in range(4):
        with OwnStream(0, rank).inside():
            drawn.append(torch.rand(1).item())
    torch.manual_seed(0)
    drawn.append(torch.rand(1).item())
    assert len(set(drawn)) == 5


def test_own_streams_are_the_same_in_every_run() -> None:
    def drawn() -> list[float]:
        own, found = OwnStream(3, rank=2), []
        for _ in range(2):
            with own.inside():
                found += torch.rand(2).tolist()
        return found

    torch.rand(1)
    assert drawn() == drawn()


def test_an_exception_inside_still_puts_the_script_back() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="empty"), OwnStream(0, 0).inside():
        max(torch.rand(2).tolist()[2:])
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.rand(1),
        lambda: np.random.rand(),
        random.random,
        lambda: torch.randperm(3),
        lambda: random.shuffle([1, 2]),
    ],
    ids=["torch", "numpy", "random", "randperm", "shuffle"],
)
def test_a_draw_from_any_stream_is_noticed_and_can_be_taken_back(use: Any) -> None:
    rng.start(0)
    before = rng.snapshot()
    assert not rng.drawn_since(before)
    use()
    assert rng.drawn_since(before)
    rng.restore(before)
    assert not rng.drawn_since(before)


def test_a_draw_that_fills_a_new_block_of_numpy_is_noticed() -> None:
    """Numpy draws blocks of 624 numbers: after as many the position is where it was."""
    rng.start(0)
    np.random.random_sample(312)
    before = rng.snapshot()
    np.random.random_sample(312)
    assert rng.drawn_since(before)


def test_a_normal_number_that_was_kept_is_put_back() -> None:
    """Pairs of normal numbers are drawn: the second waits in the state."""
    rng.start(0)
    np.random.randn()
    before = rng.snapshot()
    expected = [np.random.randn(), random.gauss(0, 1)]
    assert rng.drawn_since(before)
    rng.restore(before)
    assert [np.random.randn(), random.gauss(0, 1)] == expected


def test_nothing_drawn_is_nothing_drawn() -> None:
    rng.start(0)
    before = rng.snapshot()
    torch.ones(3).sum()
    torch.rand(1, generator=torch.Generator().manual_seed(1))
    np.random.default_rng(1).random()
    assert not rng.drawn_since(before)


def started(group: Group) -> list[Any]:
    random.seed()
    np.random.seed()
    torch.seed()
    with seeding_as_before():
        rng.start(11)
        return [*draw(), *unseeded(11)]


def test_all_workers_start_with_the_same_streams(pool: Any) -> None:
    first, *others = pool(3).run(started)
    assert others == [first, first]
