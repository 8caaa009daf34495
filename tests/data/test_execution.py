"""Threads and processes: the same batches in the same order, errors that say as much, and nothing left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch

import paceline.data as pd
from paceline.data.meters import Clock
from paceline.errors import DataError

pytestmark = pytest.mark.usefixtures("nothing_left")
KINDS = ["here", "threads", "processes"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(number: int) -> Any:
    return {"x": np.full((3, 4), number, np.float32), "y": number, "name": f"n{number}", "t": torch.tensor([number])}


def listed(pipeline: Any) -> list[Any]:
    return [(batch["x"][:, 0, 0].tolist(), batch["y"].tolist(), batch["name"]) for batch in pipeline]


def numbers(length: int = 60) -> pd.Pipeline:
    return pd.items(list(range(length))).shuffle(seed=1)


@each_kind
@pytest.mark.parametrize("parallel", [1, 3])
def test_the_same_batches_in_the_same_order(kind: Any, parallel: int) -> None:
    pipeline = numbers().map_and_batch(make, 7, kind=kind, parallel=parallel)
    plain = numbers().map_and_batch(make, 7, kind="here")
    for _ in range(2):
        assert listed(pipeline) == listed(plain)
    pipeline.close()


@each_kind
def test_streams_and_single_samples_too(kind: Any) -> None:
    def made(kind: Any) -> pd.Pipeline:
        return pd.stream(lambda: range(30)).shuffle(8).map(lambda n: (n, os.getpid()), kind=kind, parallel=2)

    pipeline = made(kind)
    found = list(pipeline)
    assert [n for n, _ in found] == [n for n, _ in made("here")]
    assert ({pid for _, pid in found} == {os.getpid()}) == (kind != "processes")
    pipeline.close()


@each_kind
@pytest.mark.parametrize("deterministic", [True, False])
def test_killed_and_restored(kind: Any, deterministic: bool) -> None:
    def made() -> pd.Pipeline:
        return numbers().map_and_batch(make, 4, kind=kind, parallel=3, deterministic=deterministic)

    whole = sorted(y for _, ys, _ in listed(numbers().map_and_batch(make, 4)) for y in ys)
    for killed in (1, 14) if kind == "processes" else (0, 1, 5, 14, 15):
        first = made()
        found = listed(itertools.islice(first, killed))
        state = json.loads(json.dumps(first.state()))
        first.close()
        second = made()
        second.restore(state)
        again = itertools.islice(second, 2)
        found += listed(again)
        state = json.loads(json.dumps(second.state()))
        second.close()
        if not state["ended"]:
            third = made()
            third.restore(state)
            found += listed(third)
            third.close()
        assert sorted(y for _, ys, _ in found for y in ys) == whole
        if deterministic:
            assert found == listed(numbers().map_and_batch(make, 4))


def test_what_is_ready_first_comes_first_when_order_does_not_matter() -> None:
    slow, gate = threading.Event(), threading.Event()

    def wait(number: int) -> int:
        if number == 0:
            gate.wait(60)
        slow.set()
        return number

    pipeline = pd.items(list(range(8))).map(wait, kind="threads", parallel=2, deterministic=False)
    stream = iter(pipeline)
    first = next(stream)
    state = pipeline.state()
    assert first != 0
    gate.set()
    assert sorted([first, *stream]) == list(range(8))
    pipeline.close()
    again = pd.items(list(range(8))).map(wait, kind="here", deterministic=False)
    again.restore(state)
    assert sorted([first, *again]) == list(range(8))


@each_kind
def test_a_function_that_raises_names_the_sample(kind: Any) -> None:
    def bad(number: int) -> float:
        return 1 / (number - 13)

    with pytest.raises(DataError, match=r"bad raised ZeroDivisionError: .* on sample 13\."):
        list(pd.items(list(range(40))).map_and_batch(bad, 4, kind=kind, parallel=2))
    with pytest.raises(DataError, match=r"record 13 of the stream"):
        list(pd.stream(lambda: range(40)).map_and_batch(bad, 4, kind=kind, parallel=2))
    pipeline = pd.items(list(range(40))).map_and_batch(bad, 4, kind=kind, parallel=2, on_error="skip")
    assert [len(batch) for batch in pipeline] == [4, 4, 4, 3, 4, 4, 4, 4, 4, 4]
    assert pipeline.lost == 1
    pipeline.close()


@each_kind
def test_random_numbers_are_those_of_the_sample_wherever_it_is_made(kind: Any) -> None:
    def draw(number: int, generator: np.random.Generator) -> float:
        return number + generator.random()

    def made(kind: Any) -> pd.Pipeline:
        return numbers(20).map_and_batch(draw, 4, seed=5, kind=kind, parallel=2)

    pipeline, plain = made(kind), made("here")
    epochs = [[batch.tolist() for batch in pipeline] for _ in range(2)]
    assert epochs == [[batch.tolist() for batch in plain] for _ in range(2)]
    draws = [value % 1 for epoch in epochs for batch in epoch for value in batch]
    assert len(set(draws)) == 40
    first = made(kind)
    stream = iter(first)
    next(stream), next(stream)
    second = made(kind)
    second.restore(first.state())
    assert [batch.tolist() for batch in second] == epochs[0][2:]
    for one in (pipeline, first, second):
        one.close()


def test_batches_of_processes_stay_what_they_are_however_many_are_kept() -> None:
    """They lie in shared memory that is used again: never while somebody holds it."""
    pipeline = pd.items(list(range(200))).map_and_batch(make, 4, kind="processes", parallel=2)
    kept = list(pipeline)
    for number, batch in enumerate(kept):
        expected = list(range(number * 4, number * 4 + 4))
        assert batch["x"][:, 2, 3].tolist() == expected
        assert batch["t"][:, 0].tolist() == expected
    views = [batch["x"][1] for batch in pipeline]
    pipeline.close()
    assert [view[0, 0].item() for view in views] == [number * 4 + 1 for number in range(50)]


def test_large_and_odd_batches_come_through_processes() -> None:
    def odd(number: int) -> Any:
        return "x" * 200_000, torch.arange(6).view(2, 3).t(), number

    def collate(samples: list[Any]) -> Any:
        return [text for text, _, _ in samples], [matrix for _, matrix, _ in samples]

    pipeline = pd.items(list(range(9))).map(odd, kind="processes", parallel=2).batch(3, collate=collate)
    for texts, matrices in pipeline:
        assert texts == ["x" * 200_000] * 3
        assert all(torch.equal(matrix, torch.arange(6).view(2, 3).t()) for matrix in matrices)
    pipeline.close()
    big = pd.items([1, 2]).map_and_batch(lambda n: np.full(30 << 20, n, np.uint8), 1, kind="processes", parallel=1)
    assert [int(batch[0, -1]) for batch in big] == [1, 2]
    big.close()


def test_a_process_that_is_killed_is_told_of() -> None:
    def die(number: int) -> int:
        if number == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    pipeline = pd.items(list(range(20))).map_and_batch(die, 2, kind="processes", parallel=2)
    with pytest.raises(DataError, match="ended by signal SIGKILL"):
        list(pipeline)
    pipeline.close()


def test_what_a_process_caches_is_there_for_all() -> None:
    cached = numbers(40).map(lambda n: np.full(5, n, np.float32)).cache()
    pipeline = cached.map(lambda row: (row, os.getpid()), kind="processes", parallel=2).batch(4)
    for _ in range(2):
        assert sorted(value for rows, _ in pipeline for value in rows[:, 0].tolist()) == list(range(40))
    pipeline.close()


def test_a_loop_that_is_left_leaves_nothing() -> None:
    for kind in ("threads", "processes"):
        for batch in pd.items(list(range(1000))).map_and_batch(make, 4, kind=kind, parallel=2).prefetch(2):
            del batch
            break
    for line in pd.stream(lambda: itertools.count()).map(str, kind="threads", parallel=2):
        if line == "100":
            break


def test_prefetching_runs_ahead_and_stops_at_its_depth() -> None:
    made: list[int] = []
    enough = threading.Event()

    def count(number: int) -> int:
        made.append(number)
        if len(made) == 4:
            enough.set()
        return number

    pipeline = pd.items(list(range(100))).map(count, kind="here").prefetch(3)
    stream = iter(pipeline)
    assert next(stream) == 0
    assert enough.wait(60)
    assert len(made) <= 5
    pipeline.close()


def test_an_error_comes_where_it_happened_through_prefetch() -> None:
    pipeline = pd.items([1, 2, 0, 4]).map(lambda n: 1 / n, kind="here").prefetch(2)
    stream = iter(pipeline)
    assert [next(stream), next(stream)] == [1.0, 0.5]
    with pytest.raises(DataError, match="ZeroDivisionError"):
        next(stream)


def test_the_report_names_the_bottleneck() -> None:
    def work(number: int) -> int:
        return sum(range(2_000)) + number

    pipeline = pd.items(list(range(200))).map_and_batch(work, 10, kind="here").prefetch(2)
    assert "not known yet" in str(pipeline.report())
    for _ in pipeline:
        pass
    report = pipeline.report()
    assert 0 < report.waited < 1
    stage = next(stage for stage in report.stages if stage.name == "map work · batch 10")
    assert (stage.results, stage.where) == (20, "here")
    for words in ("stage", "ms each", "prefetch", "The consumer waited"):
        assert words in str(report)
    # How long the consumer waited is the machine's affair: here it is said.
    clock = pipeline._runtime.clock
    clock.waited, clock.used = 0.06, 0.94
    assert pipeline.report().bottleneck.startswith("map work · batch 10")
    clock.waited, clock.used = 0.04, 0.96
    assert pipeline.report().bottleneck.startswith("the consumer")


def test_a_clock_counts_waiting_and_using(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100.0, 2.0)
    monkeypatch.setattr("paceline.data.meters.perf_counter", lambda: next(now))
    clock = Clock()
    for _ in range(3):
        clock.asked()
        clock.answered()
    assert (clock.waited, clock.used, clock.results) == (6.0, 4.0, 3)
