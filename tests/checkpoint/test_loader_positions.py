"""A loader continues where it was saved: no sample is repeated or skipped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import paceline
import paceline.data as pd
from paceline.errors import CheckpointError

DATA = TensorDataset(torch.arange(23))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(DATA.tensors[0][torch.randperm(23)])


class Shuffled:
    """A sampler with generators of its own."""

    def __init__(self, seed: int) -> None:
        self.numpy, self.python = np.random.default_rng(seed), random.Random(seed)

    def __len__(self) -> int:
        return 23

    def __iter__(self) -> Iterator[int]:
        order = self.numpy.permutation(23).tolist()
        self.python.shuffle(order)
        return iter(order)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Any] = {
    "in order": lambda: DataLoader(DATA, batch_size=3),
    "shuffled": lambda: DataLoader(DATA, batch_size=3, shuffle=True),
    "drop_last": lambda: DataLoader(DATA, batch_size=3, shuffle=True, drop_last=True),
    "own generator": lambda: DataLoader(DATA, batch_size=3, shuffle=True, generator=seeded()),
    "sampler's generator": lambda: DataLoader(DATA, batch_size=3, sampler=RandomSampler(DATA, generator=seeded())),
    "with replacement": lambda: DataLoader(DATA, batch_size=3, sampler=RandomSampler(DATA, True, num_samples=50)),
    "weighted": lambda: DataLoader(DATA, batch_size=3, sampler=WeightedRandomSampler(torch.arange(1.0, 24), 20)),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False)),
    "generators in the sampler": lambda: DataLoader(DATA, batch_size=3, sampler=Shuffled(3)),
    "without batches": lambda: DataLoader(DATA, batch_size=None, shuffle=True),
    "iterable": lambda: DataLoader(Stream(), batch_size=3),
    "drop_in": lambda: pd.drop_in(DataLoader(DATA, batch_size=3, shuffle=True)),
}
PROCESSES: dict[str, Any] = {
    "processes": lambda: DataLoader(DATA, batch_size=3, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(DATA, batch_size=3, shuffle=True, num_workers=1, persistent_workers=True),
}


def play(loader: Any, epochs: int, path: Path, save_at: tuple[int, int] | None) -> list[Any]:
    """The batches of all epochs, with a random number of the script's own after each; saved behind one batch."""
    seen = []
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            seen.append((torch.as_tensor(batch[0]).flatten().tolist(), torch.rand(1).item()))
            if (epoch, number) == save_at:
                paceline.save(path, loader=loader, extra=len(seen))
        if save_at == (epoch, -1):
            paceline.save(path, loader=loader, extra=len(seen))
    return seen


def closed(loader: Any) -> None:
    if hasattr(loader, "close"):
        loader.close()


@pytest.mark.parametrize("at", [(0, 0), (1, 3), (0, -1)], ids=["first batch", "second epoch", "between epochs"])
@pytest.mark.parametrize("name", [*LOADERS, *PROCESSES])
def test_a_loader_continues_behind_the_last_batch(tmp_path: Path, name: str, at: tuple[int, int]) -> None:
    make = (LOADERS | PROCESSES)[name]
    torch.manual_seed(1)
    first = make()
    expected = play(first, 3, tmp_path / "ck", at)
    torch.manual_seed(2)
    second = make()
    done = paceline.load(tmp_path / "ck", loader=second).extra
    found = play(second, 3 - at[0] - (at[1] == -1), tmp_path / "other", None)
    assert found == expected[done:]
    closed(first)
    closed(second)


@pytest.mark.parametrize("name", ["shuffled", "drop_in", "persistent"])
def test_saved_behind_the_last_batch_nothing_of_the_epoch_is_left(tmp_path: Path, name: str) -> None:
    make = (LOADERS | PROCESSES)[name]
    first, second = make(), make()
    expected = play(first, 2, tmp_path / "ck", (0, 7))
    paceline.load(tmp_path / "ck", loader=second)
    assert list(second) == []
    assert play(second, 1, tmp_path / "ck", None) == expected[8:]
    closed(first)
    closed(second)


def test_a_loop_that_was_left_is_not_continued(tmp_path: Path) -> None:
    for make in (LOADERS["shuffled"], PROCESSES["persistent"]):
        loader = make()
        for _ in loader:
            break
        paceline.save(tmp_path / "ck", loader=loader)
        other = make()
        paceline.load(tmp_path / "ck", loader=other)
        assert len(list(other)) == 8


def test_a_position_survives_a_save_before_the_loop_begins(tmp_path: Path) -> None:
    loader = LOADERS["shuffled"]()
    expected = play(loader, 1, tmp_path / "ck", (0, 4))
    for _ in range(2):
        loader = LOADERS["shuffled"]()
        paceline.load(tmp_path / "ck", loader=loader)
        paceline.save(tmp_path / "ck", loader=loader)
    assert play(loader, 1, tmp_path / "ck", None) == expected[5:]


def test_saved_again_in_the_continued_epoch(tmp_path: Path) -> None:
    expected = play(LOADERS["shuffled"](), 2, tmp_path / "ck", (0, 1))
    second = LOADERS["shuffled"]()
    paceline.load(tmp_path / "ck", loader=second)
    play(second, 1, tmp_path / "ck", (0, 2))
    third = LOADERS["shuffled"]()
    paceline.load(tmp_path / "ck", loader=third)
    assert play(third, 2, tmp_path / "ck", None) == expected[5:]


def test_a_pipeline_continues(tmp_path: Path) -> None:
    def make() -> Any:
        return pd.arrays(torch.arange(23)).shuffle(seed=1).batch(3)

    expected = play(make(), 2, tmp_path / "ck", (0, 4))
    second = make()
    paceline.load(tmp_path / "ck", loader=second)
    assert [batch for batch, _ in play(second, 2, tmp_path / "other", None)] == [batch for batch, _ in expected[5:]]


def test_another_batch_size_or_dataset_is_refused(tmp_path: Path) -> None:
    paceline.save(tmp_path / "ck", loader=DataLoader(DATA, batch_size=3))
    with pytest.raises(
        CheckpointError, match="batch size: saved 3, now 4\n  loader: length of the dataset: saved 23, now 5"
    ):
        paceline.load(tmp_path / "ck", loader=DataLoader(TensorDataset(torch.arange(5)), batch_size=4))
