"""Each stage on lists: what comes out, in which order."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset, default_collate

import paceline.data as pd
from paceline.errors import DataError, UsageError

N = 23


def numbers(length: int = N) -> pd.Pipeline:
    return pd.items(list(range(length)))


def streamed(length: int = N) -> pd.Pipeline:
    return pd.stream(lambda: range(length))


SOURCES = {"items": numbers, "stream": streamed}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@each_source
def test_stages_do_what_list_operations_do(source: Any) -> None:
    whole = list(range(N))
    assert list(source()) == whole
    assert list(source().take(5)) == whole[:5]
    assert list(source().skip(20)) == whole[20:]
    assert list(source().repeat(3)) == whole * 3
    assert list(source().map(lambda x: x * x)) == [x * x for x in whole]
    assert list(source().filter(lambda x: x % 3)) == [x for x in whole if x % 3]
    assert list(source().take(7).repeat(2).skip(3).take(8)) == (whole[:7] * 2)[3:][:8]
    assert [b.tolist() for b in source().batch(10)] == [whole[:10], whole[10:20], whole[20:]]
    assert [b.tolist() for b in source().batch(10, last="drop")] == [whole[:10], whole[10:20]]
    assert [b.tolist() for b in source().batch(10).take(1)] == [whole[:10]]
    assert [b.tolist() for b in source().batch(10).map(lambda b: b + 1)][2] == [21, 22, 23]
    assert list(source().zip(source().map(str))) == [(x, str(x)) for x in whole]
    assert list(itertools.islice(source().repeat(), 50)) == (whole * 3)[:50]
    assert list(source().prefetch(3)) == whole
    assert [b.tolist() for b in source().batch(4).prefetch()][-1] == whole[20:]
    assert [b.tolist() for b in source().filter(lambda x: x > 20).batch(9).batch(2)] == [[[21, 22]]]


@each_source
@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 3))
def test_shuffling_loses_nothing_and_repeats_itself(source: Any, length: int, buffer: int, seed: int) -> None:
    shuffled = source(length).shuffle(buffer, seed=seed)
    first, second = list(shuffled), list(shuffled)
    assert sorted(first) == sorted(second) == list(range(length))
    again = source(length).shuffle(buffer, seed=seed)
    assert (list(again), list(again)) == (first, second)


@each_source
def test_every_loop_is_an_epoch_in_an_order_of_its_own(source: Any) -> None:
    shuffled = source().shuffle(seed=1)
    assert len({tuple(shuffled) for _ in range(4)}) == 4


@each_source
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 4))
def test_shuffled_epochs_never_mix(source: Any, length: int, buffer: int, times: int) -> None:
    found = list(source(length).shuffle_and_repeat(buffer, times, seed=2))
    assert len(found) == length * times
    for number in range(times):
        assert sorted(found[number * length : (number + 1) * length]) == list(range(length))


def test_a_stream_is_shuffled_in_windows() -> None:
    found = list(streamed(40).shuffle(10))
    assert [sorted(found[at : at + 10]) for at in range(0, 40, 10)] == [list(range(a, a + 10)) for a in (0, 10, 20, 30)]


def test_the_next_window_fills_while_this_one_is_used() -> None:
    read: list[int] = []

    def source() -> Any:
        for number in range(400):
            read.append(number)
            yield number

    stream = iter(pd.stream(source).shuffle(100))
    for _ in range(50):
        next(stream)
    assert 150 <= len(read) <= 220  # in chunks


def test_a_map_is_called_once_a_sample_and_not_before_it_is_needed() -> None:
    calls: list[int] = []
    pipeline = numbers(1000).shuffle().map(lambda x: calls.append(x) or x).batch(10)
    batch = next(iter(pipeline))
    assert batch.tolist() == calls


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda i: i,
        lambda i: float(i),
        lambda i: bool(i % 2),
        lambda i: np.float32(i),
        lambda i: np.full((2, 3), i, np.int16),
        lambda i: torch.full((2,), i, dtype=torch.bfloat16),
        lambda i: {"x": torch.tensor(i), "name": str(i)},
        lambda i: [i, {"y": (np.zeros(2), i)}],
        lambda i: Pair(torch.ones(i // 100 + 1), -i),
    ],
)
def test_batches_are_those_that_torch_would_make(make: Any) -> None:
    expected = default_collate([make(i) for i in range(4)])
    found = next(iter(numbers(4).map(make).batch(4)))

    def compare(one: Any, other: Any) -> None:
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        elif isinstance(one, dict):
            for key in one:
                compare(one[key], other[key])
        elif isinstance(one, (list, tuple)):
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                compare(a, b)
        else:
            assert one == other

    compare(expected, found)


def test_samples_that_do_not_fit_into_one_batch_are_named() -> None:
    with pytest.raises(DataError, match=r"differ in shape: \[1\] and \[2\]"):
        list(numbers(3).map(lambda i: np.zeros(i + 1)).batch(3))
    with pytest.raises(DataError, match="one has 1 values, another 2"):
        list(numbers(3).map(lambda i: (i,) * (i + 1)).batch(3))


def test_arrays_in_any_nest() -> None:
    x, y = np.arange(12).reshape(6, 2), torch.arange(6) * 10
    for (a, b), (c, d) in zip(pd.arrays(x, y).batch(4), [(x[:4], y[:4]), (x[4:], y[4:])], strict=True):
        assert a.tolist() == c.tolist()
        assert b.tolist() == d.tolist()
    batch = next(iter(pd.arrays({"x": x, "deep": [y]}).shuffle().batch(3)))
    assert (batch["x"][:, 0] * 5).tolist() == batch["deep"][0].tolist()
    assert next(iter(pd.arrays(x).batch(2))).tolist() == x[:2].tolist()
    assert [(a.tolist(), b.item()) for a, b in pd.arrays(x, y).take(1)] == [([0, 1], 0)]
    with pytest.raises(UsageError, match="differ in length: 5, 6"):
        pd.arrays(x, y[:5])
    with pytest.raises(UsageError, match="array of <U1"):
        pd.arrays(np.array(["a"]))


def test_a_batch_of_arrays_is_one_gather_whatever_the_order() -> None:
    x = torch.arange(1000).float().view(1000, 1).repeat(1, 3)
    pipeline = pd.arrays(x, torch.arange(1000)).shuffle(seed=4).batch(64)
    for images, labels in pipeline:
        assert torch.equal(images[:, 0].long(), labels)
        assert images.is_contiguous()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


def test_datasets_of_torch() -> None:
    tensors = TensorDataset(torch.arange(5), torch.arange(5) + 1)
    assert [a.tolist() for a, _ in pd.dataset(tensors).batch(3)] == [[0, 1, 2], [3, 4]]
    part = torch.utils.data.Subset(tensors, [4, 2])
    assert [[t.tolist() for t in b] for b in pd.dataset(part).batch(3)] == [[[4, 2], [5, 3]]]
    assert [a for a, _ in pd.dataset(torch.utils.data.Subset([(i, i) for i in range(5)], [3, 1]))] == [3, 1]
    assert list(pd.dataset(Stream())) == [0, 1, 2, 3, 4]


def test_interleaving_takes_blocks_in_turn() -> None:
    found = list(pd.items([3, 2, 4]).interleave(lambda n: [n] * n, cycle=2, block=2))
    assert found == [3, 3, 2, 2, 3, 4, 4, 4, 4]
    found = list(pd.items([1, 2, 3]).map(lambda n: n * 10).interleave(lambda n: range(n, n + 2), cycle=1))
    assert found == [10, 11, 20, 21, 30, 31]
    with pytest.raises(UsageError, match="after a stage that makes a stream"):
        list(numbers().filter(bool).interleave(range))


def test_mixing_draws_by_weight_and_loses_nothing() -> None:
    a, b = pd.items(["a"] * 900), pd.items(["b"] * 900)
    found = list(pd.mix([a, b], [3, 1], seed=5))
    assert Counter(found) == {"a": 900, "b": 900}
    assert 0.7 < found[:1000].count("a") / 1000 < 0.8
    assert found == list(pd.mix([a, b], [3, 1], seed=5))
    with pytest.raises(UsageError, match="weights"):
        pd.mix([a], [0.0])


def test_lines_of_files(tmp_path: Path) -> None:
    for name, text in {"a": "one\ntwo\r\n", "b": "", "c": "drei\nüü"}.items():
        (tmp_path / f"{name}.txt").write_bytes(text.encode())
    assert list(pd.lines(str(tmp_path / "*.txt"))) == ["one", "two", "drei", "üü"]
    assert list(pd.files([tmp_path / "c.txt"]).lines()) == ["drei", "üü"]
    with pytest.raises(UsageError, match="matches no file"):
        pd.files(str(tmp_path / "*.none"))


def test_lengths_are_known_where_they_can_be() -> None:
    assert len(numbers().batch(4)) == 6
    assert len(numbers().batch(4, last="drop").prefetch()) == 5
    assert len(numbers().repeat(2).map(str)) == 46
    assert [len(numbers().shard(rank, 3)) for rank in range(3)] == [8, 8, 7]
    for endless in (numbers().repeat(), streamed(), numbers().filter(bool)):
        with pytest.raises(TypeError, match="is unknown"):
            len(endless)


def test_a_function_that_raises_names_the_sample() -> None:
    def invert(x: int) -> float:
        return 1 / (x - 5)

    with pytest.raises(DataError, match=r"invert raised ZeroDivisionError: .* on sample 5\."):
        list(numbers().map(invert))
    with pytest.raises(DataError, match="record 5 of the stream"):
        list(streamed().map(invert).batch(4))
    with pytest.raises(DataError, match="sample 5"):
        list(numbers().filter(invert))
    for window in (streamed().shuffle(7), streamed().shuffle_and_repeat(9, 2), streamed().repeat(2)):
        with pytest.raises(DataError, match=r"record 5 of the stream\."):
            list(window.map_and_batch(invert, 6))
        with pytest.raises(DataError, match=r"record 5 of the stream\."):
            list(window.filter(lambda x: x > 2).map(invert))
    with pytest.raises(DataError, match="the batch that begins with sample 4"):
        list(numbers().batch(2).map(lambda b: 1 / 0 if b[0] == 4 else b))


def test_what_fails_can_be_left_out_and_is_counted() -> None:
    pipeline = numbers().map(lambda x: 1 // (x % 5), on_error="skip")
    assert len(list(pipeline)) == 18
    assert pipeline.lost == 5
    pipeline = numbers().map_and_batch(lambda x: 1 // (x % 5), 5, on_error="warn")
    with pytest.warns(UserWarning, match="Left out|were left out") as said:
        assert [len(b) for b in pipeline] == [4, 4, 4, 4, 2]
    assert "ZeroDivisionError" in str(said[0].message)
    assert "5 samples were left out in this epoch" in str(said[-1].message)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: numbers().batch(0), "size=0"),
        (lambda: numbers().take(-1), "count=-1"),
        (lambda: numbers().shuffle(0), "buffer=0"),
        (lambda: numbers().batch(2, last="lose"), "last='lose'"),
        (lambda: numbers().map(str, on_error="hide"), "on_error='hide'"),
        (lambda: numbers().map(str, kind="magic"), "kind='magic'"),
        (lambda: numbers().shard(3, 3), "rank=3, world=3"),
    ],
)
def test_mistakes_are_told_when_they_are_written(ask: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ask()
