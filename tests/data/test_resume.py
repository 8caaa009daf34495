"""Killed anywhere and restored on any number of workers: every sample comes once an epoch, in the order that it had."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paceline.data as pd
from paceline import settings
from paceline.errors import UsageError

UNITS = [5, 0, 9, 3, 7, 1, 12]  # lengths of what stands for files


def units(count: int) -> pd.Pipeline:
    """Samples (unit, number): none is like another."""
    lengths = UNITS[:count]
    return pd.items(list(range(len(lengths)))).interleave(
        lambda unit: ((unit, number) for number in range(lengths[unit])), cycle=2, block=2
    )


def indexed(length: int) -> pd.Pipeline:
    return pd.items([(0, number) for number in range(length)])


def odd(sample: Any) -> bool:
    return bool((sample[0] + sample[1]) % 3)


# What must come out in an epoch, and a pipeline of it.
PIPELINES: dict[str, Callable[[int], pd.Pipeline]] = {
    "indexed": lambda n: indexed(n),
    "shuffled": lambda n: indexed(n).shuffle(seed=1),
    "taken": lambda n: indexed(n + 9).skip(4).take(n),
    "mapped": lambda n: indexed(n).map(lambda s: s).shuffle(seed=2).prefetch(2),
    "filtered": lambda n: indexed(n).shuffle(seed=3).filter(odd),
    "window after a filter": lambda n: indexed(n).filter(odd).shuffle(5, seed=4),
    "units": lambda n: units(n % 8),
    "shuffled units": lambda n: (
        pd.items(list(range(n % 8)))
        .shuffle(seed=5)
        .interleave(lambda unit: ((unit, number) for number in range(UNITS[unit])), cycle=3, block=1)
    ),
    "windows of units": lambda n: units(n % 8).shuffle(4, seed=6),
    "windows and a filter": lambda n: units(n % 8).map(lambda s: s).shuffle(6, seed=7).filter(odd).prefetch(1),
    "skipped in a stream": lambda n: units(n % 8).shuffle(3).filter(odd).skip(2).take(11),
    "zipped": lambda n: indexed(n).shuffle(seed=8).zip(indexed(n).shuffle(seed=8)).map(lambda pair: pair[0]),
    "mixed": lambda n: pd.mix([units(n % 8), pd.items([(99, i) for i in range(n)]).shuffle()], [1, 2]),
}
LIMITED = ("skipped in a stream",)  # each worker skips and takes its share, of more or less than there is
EVEN = ("indexed", "shuffled", "taken", "mapped", "zipped")  # one worker's state speaks for all
each_pipeline = pytest.mark.parametrize("name", PIPELINES)


def listed(batches: Any) -> list[Any]:
    """Batches as lists of samples."""
    return [list(zip(*[column.tolist() for column in batch], strict=True)) for batch in batches]


def flat(batches: Any) -> list[Any]:
    return list(itertools.chain(*batches))


def saved(pipeline: pd.Pipeline) -> Any:
    """A state, as a checkpoint would keep it."""
    return json.loads(json.dumps(pipeline.state()))


@each_pipeline
@given(data=st.data())
def test_a_killed_worker_goes_on_with_the_next_batch(name: str, data: Any) -> None:
    length, size = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 7))
    world = data.draw(st.integers(1, 3))
    if name == "zipped" and world > 1 and length == 0:
        return
    rank = data.draw(st.integers(0, world - 1))

    def made() -> pd.Pipeline:
        return PIPELINES[name](length).batch(size).shard(rank, world)

    straight = made()
    epochs = [listed(straight) for _ in range(3)]
    epoch = data.draw(st.integers(0, 1))
    killed = data.draw(st.integers(0, len(epochs[epoch])))
    first = made()
    for _ in range(epoch):
        listed(first)
    assert listed(itertools.islice(first, killed)) == epochs[epoch][:killed]
    second = made()
    second.restore(saved(first))
    first.close()
    assert second.state()["epoch"] == epoch
    assert listed(second) == epochs[epoch][killed:]
    assert listed(second) == epochs[epoch + 1]


@each_pipeline
@given(data=st.data())
def test_every_sample_once_an_epoch_whatever_becomes_of_the_workers(name: str, data: Any) -> None:
    """Generations of workers, each of another number, killed after some batches; the last one ends the epoch."""
    length = data.draw(st.integers(0, 30))
    whole = sorted(PIPELINES[name](length))
    found: list[Any] = []
    states: list[Any] = []
    for world in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        size = data.draw(st.integers(1, 5))  # may change: states count samples
        workers = [PIPELINES[name](length).batch(size).shard(rank, world) for rank in range(world)]
        steps = data.draw(st.lists(st.integers(0, 4), min_size=world, max_size=world))
        for worker, count in zip(workers, steps, strict=True):
            if states:
                worker.restore(states)
            found += flat(listed(itertools.islice(worker, count)))
        states = [saved(worker) for worker in workers]
        for worker in workers:
            worker.close()
        if all(state["ended"] for state in states):
            break
    last = data.draw(st.integers(1, 4))
    rest = [PIPELINES[name](length).batch(3).shard(rank, last) for rank in range(last)]
    for worker in rest:
        worker.restore(states)
        if not all(state["ended"] for state in states):
            found += flat(listed(worker))
    after = [sample for worker in rest for batch in listed(worker) for sample in batch]
    if name in LIMITED:
        assert len(found) == len(set(found))
        assert len(after) == len(set(after))
    else:
        assert sorted(found) == sorted(after) == whole


@pytest.mark.parametrize("name", EVEN)
@given(data=st.data())
def test_one_workers_state_is_enough_where_all_stand_alike(name: str, data: Any) -> None:
    length, size = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    before, after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    workers = [PIPELINES[name](length).batch(size).shard(rank, before) for rank in range(before)]
    steps = data.draw(st.integers(0, max(0, min(len(worker) for worker in workers))))
    found = [s for worker in workers for b in listed(itertools.islice(worker, steps)) for s in b]
    speaks = data.draw(st.integers(0, before - 1))
    for rank in range(after):
        worker = PIPELINES[name](length).batch(size).shard(rank, after)
        worker.restore(saved(workers[speaks]))
        found += flat(listed(worker))
    for worker in workers:
        worker.close()
    assert sorted(found) == sorted(PIPELINES[name](length))


def test_a_worker_whose_last_batch_is_smaller_speaks_for_all_too() -> None:
    """Ten samples on three workers: parts of 4, 3 and 3. After two batches all are given, whoever is asked."""
    for speaks in range(3):
        workers = [indexed(10).batch(2).shard(rank, 3) for rank in range(3)]
        found = [sample for worker in workers for batch in listed(itertools.islice(worker, 2)) for sample in batch]
        assert len(found) == 10
        rest = indexed(10).batch(2).shard(0, 1)
        rest.restore(saved(workers[speaks]))
        assert listed(rest) == []


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_number_to_take_or_to_skip_counts_over_all_workers(world: int) -> None:
    def total(pipeline: pd.Pipeline) -> int:
        return sum(len(list(pipeline.shard(rank, world))) for rank in range(world))

    assert total(indexed(40).filter(lambda _: True).take(11)) == 11
    assert total(indexed(40).filter(lambda _: True).skip(11)) == 29
    assert total(indexed(40).take(11)) == 11


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 5), st.integers(0, 40))
def test_a_global_batch_is_the_same_for_any_number_of_workers(length: int, size: int, world: int, step: int) -> None:
    """Step s of N workers with batch b holds the samples that step s of one worker with batch N·b holds."""

    def step_of(rank: int, world: int, size: int) -> list[Any]:
        pipeline = indexed(length).shuffle_and_repeat(seed=9).batch(size).shard(rank, world)
        return listed(itertools.islice(pipeline, step, step + 1))[0]

    split = flat([step_of(rank, world, size) for rank in range(world)])
    assert sorted(split) == sorted(step_of(0, 1, size * world))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_endless_epochs_stay_in_step(world: int) -> None:
    """Also where the number of workers does not divide: after E epochs each sample was given E times."""
    streams = [iter(indexed(11).shuffle_and_repeat(seed=1).batch(2).shard(rank, world)) for rank in range(world)]
    found = [sample for _ in range(11) for stream in streams for sample in listed([next(stream)])[0]]
    assert sorted(found) == sorted([(0, number) for number in range(11)] * 2 * world)


def test_epochs_of_a_stream_that_workers_are_at_different_places_of() -> None:
    """Workers with shorter parts are in later rounds than others; nothing is lost when their number changes."""

    def made(rank: int, world: int) -> pd.Pipeline:
        return units(4).shuffle_and_repeat(3, 3, seed=2).batch(2).shard(rank, world)

    whole = sorted(units(4)) * 3
    for steps in itertools.product((0, 2, 6, 13), repeat=3):
        workers = [made(rank, 3) for rank in range(3)]
        found = [
            sample
            for worker, count in zip(workers, steps, strict=True)
            for batch in listed(itertools.islice(worker, count))
            for sample in batch
        ]
        states = [saved(worker) for worker in workers]
        for rank in range(2):
            worker = made(rank, 2)
            worker.restore(states)
            if not all(state["ended"] for state in states):
                found += flat(listed(worker))
        assert sorted(found) == sorted(whole)


def test_a_state_is_small() -> None:
    shuffled = indexed(1_000_000).shuffle_and_repeat(seed=1).batch(256)
    stream = iter(shuffled)
    for _ in range(5):
        next(stream)
    assert len(json.dumps(shuffled.state())) < 400
    window = pd.stream(lambda: iter(range(100_000))).shuffle(10_000).batch(64)
    stream = iter(window)
    for _ in range(50):
        next(stream)
    assert len(json.dumps(window.state())) < 1500


def test_going_on_costs_nothing_where_samples_are_asked_by_index() -> None:
    calls: list[int] = []

    def load(sample: int) -> int:
        calls.append(sample)
        return sample

    first = pd.items(list(range(1000))).shuffle().map(load, kind="here").batch(10)
    stream = iter(first)
    for _ in range(60):
        next(stream)
    state = saved(first)
    calls.clear()
    second = pd.items(list(range(1000))).shuffle().map(load, kind="here").batch(10)
    second.restore(state)
    assert len(second) == 40
    next(iter(second))
    assert len(calls) == 10


def test_after_the_last_batch_the_epoch_is_over_only_when_the_loop_is() -> None:
    pipeline = indexed(10).batch(5)
    stream = iter(pipeline)
    next(stream), next(stream)
    other = indexed(10).batch(5)
    other.restore(saved(pipeline))
    assert listed(other) == []
    assert next(stream, None) is None
    other.restore(saved(pipeline))
    assert len(listed(other)) == 2


def test_states_that_do_not_fit_are_refused() -> None:
    pipeline = indexed(10).shuffle(seed=1).batch(2)
    state = saved(pipeline)
    with pytest.raises(UsageError, match="another pipeline"):
        indexed(11).shuffle(seed=1).batch(2).restore(state)
    with pytest.raises(UsageError, match="another pipeline"):
        indexed(10).shuffle(seed=2).batch(2).restore(state)
    with pytest.raises(UsageError, match="not a pipeline's state"):
        pipeline.restore({"epoch": 3})
    worker = units(5).batch(2).shard(0, 2)
    next(iter(worker))
    with pytest.raises(UsageError, match=r"1 of the states of 2 workers"):
        units(5).batch(2).shard(0, 3).restore(saved(worker))


def test_the_launchers_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert [number for _, number in indexed(8).shard()] == [1, 4, 7]


def test_a_place_from_pacelines_own_launcher_needs_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_given", None)  # undone afterwards
    settings.use(settings.WorkerSettings(run=settings.RunSettings(script=""), record="", rank=2, world=3))
    monkeypatch.setenv("RANK", "1")
    assert [number for _, number in indexed(8).shard()] == [2, 5]


def test_arrays_resume_in_the_middle_too() -> None:
    x = torch.arange(100)
    first = pd.arrays(x, x).shuffle(seed=3).batch(7)
    whole = [a.tolist() for a, _ in first]
    first = pd.arrays(x, x).shuffle(seed=3).batch(7)
    stream = iter(first)
    next(stream), next(stream)
    second = pd.arrays(x, x).shuffle(seed=3).batch(7)
    second.restore(saved(first))
    assert [a.tolist() for a, _ in second] == whole[2:]
