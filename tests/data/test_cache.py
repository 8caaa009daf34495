"""What is cached is made once, comes in the same order as without, and survives a restart where it lies in a folder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline.data as pd
from paceline.data.formats.sample import decode, encode
from paceline.errors import DataError, UsageError


class Counting:
    """A map that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: int) -> Any:
        self.calls.append(number)
        return np.full(3, number, np.float32), number


def listed(pipeline: Any) -> list[Any]:
    return [(x[:, 0].tolist(), y.tolist()) for x, y in pipeline]


SOURCES = {
    "items": lambda: pd.items(list(range(20))),
    "stream": lambda: pd.stream(lambda: range(20)),
}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@each_source
def test_each_sample_is_made_once_and_epochs_keep_their_orders(source: Any) -> None:
    load = Counting()
    plain = source().shuffle(seed=1).map(Counting()).batch(6)
    cached = source().shuffle(seed=1).map(load).batch(6).cache()
    epochs = [(listed(plain), listed(cached)) for _ in range(3)]
    assert sorted(load.calls) == list(range(20))
    assert len({str(epoch) for _, epoch in epochs}) == 3
    for one, other in epochs:
        assert one == other


@each_source
def test_a_cache_behind_an_endless_stream_keeps_one_epoch(source: Any) -> None:
    load = Counting()
    cached = source().shuffle_and_repeat(20, seed=1).map_and_batch(load, 5).cache().prefetch(2)
    found = listed(itertools.islice(cached, 12))
    cached.close()
    assert sorted(load.calls) == list(range(20))
    plain = source().shuffle_and_repeat(20, seed=1).map_and_batch(Counting(), 5)
    assert found == listed(itertools.islice(plain, 12))


@each_source
@pytest.mark.parametrize("killed", [0, 2, 4, 6])
def test_a_run_that_was_killed_goes_on_without_its_cache(source: Any, killed: int) -> None:
    def made() -> pd.Pipeline:
        return source().shuffle_and_repeat(7, 2, seed=3).map(Counting()).cache().batch(6)

    whole = listed(made())
    first = made()
    assert listed(itertools.islice(first, killed)) == whole[:killed]
    second = made()
    second.restore(first.state())
    assert listed(second) == whole[killed:]


def test_samples_of_different_shapes_are_kept_too() -> None:
    load = Counting()

    def make(number: int) -> Any:
        load(number)
        return np.zeros(number)

    cached = pd.items(list(range(6))).map(make).cache()
    for _ in range(3):
        assert [len(sample) for sample in cached] == list(range(6))
    assert len(load.calls) == 6


def test_samples_are_the_same_kinds_of_things_from_the_cache() -> None:
    def make(number: int) -> Any:
        return {"a": torch.tensor([number]), "b": number, "c": float(number), "d": np.arange(2), "e": np.int8(number)}

    cached = pd.items([1, 2]).map(make).cache()
    first, second = list(cached), list(cached)
    for one, other in zip(first, second, strict=True):
        assert {key: type(value) for key, value in one.items()} == {key: type(value) for key, value in other.items()}
        assert str(one) == str(other)


@each_source
def test_a_folder_is_used_by_the_next_run(source: Any, tmp_path: Path) -> None:
    loads = [Counting(), Counting()]
    found = []
    for load in loads:
        pipeline = source().map(load).cache(str(tmp_path / "cache")).shuffle(seed=2).batch(6)
        found.append([listed(pipeline), listed(pipeline)])
    assert len(loads[0].calls) == 20
    assert len(loads[1].calls) <= 1  # one, to learn what a sample looks like
    assert found[0] == found[1]


def test_workers_share_a_folder(tmp_path: Path) -> None:
    loads = [Counting(), Counting()]
    for epoch in range(2):
        for rank, load in enumerate(loads):
            pipeline = pd.items(list(range(20))).map(load).cache(str(tmp_path)).batch(5).shard(rank, 2)
            listed(pipeline)
        del epoch
    assert len(loads[0].calls) + len(loads[1].calls) <= 22  # one more each, for the second pipeline to learn


def test_a_row_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    listed(pd.items(list(range(20))).map(Counting()).cache(str(tmp_path)).batch(6))
    [rows] = tmp_path.rglob("0.rows")
    raw = bytearray(rows.read_bytes())
    raw[12 * 7 + 2] ^= 0x40
    rows.write_bytes(bytes(raw))
    load = Counting()
    found = listed(pd.items(list(range(20))).map(load).cache(str(tmp_path)).batch(20))
    assert found[0][0] == [float(number) for number in range(20)]
    assert 7 in load.calls
    assert len(load.calls) <= 2


def test_other_code_gets_rows_of_its_own(tmp_path: Path) -> None:
    for factor in (2, 3):
        pipeline = pd.items([1, 2]).map((lambda n: n * 2) if factor == 2 else (lambda n: n * 3))
        assert [b.tolist() for b in pipeline.cache(str(tmp_path)).batch(2)] == [[factor, 2 * factor]]


def test_a_pass_that_was_damaged_is_an_error_and_says_which_file(tmp_path: Path) -> None:
    def made() -> pd.Pipeline:
        return pd.stream(lambda: range(20)).map(lambda n: (n, str(n))).cache(str(tmp_path))

    assert list(made()) == list(made()) == [(n, str(n)) for n in range(20)]
    [file] = tmp_path.iterdir()
    raw = file.read_bytes()
    for broken in (raw[:-30], raw[:50] + bytes([raw[50] ^ 1]) + raw[51:], raw[:3], raw[8:]):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=r"pass\.0of1\.records is damaged"):
            list(made())


def test_what_cannot_be_cached_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not arrays and numbers of equal shapes"):
        list(pd.items([1, 2]).map(str).cache(str(tmp_path)))
    with pytest.raises(UsageError, match="needs every sample"):
        list(pd.items([1, 0]).map(lambda n: 1 // n, on_error="skip").cache())
    with pytest.raises(UsageError, match=r"GiB are free"):
        next(iter(pd.items(range(10**12)).map(lambda n: np.zeros(100)).cache()))


def test_nests_survive_as_bytes() -> None:
    sample = {"a": (np.arange(6).reshape(2, 3), "text", b"raw"), "b": [1, 2.5, None, True], "c": torch.ones(2)}
    back = decode(encode(sample))
    assert str(back) == str(sample)
    assert back["a"][0].dtype == np.int64
    with pytest.raises(UsageError, match="with a object cannot be packed"):
        encode(object())
