"""In the place of a DataLoader: the same batches, the same order, and the same random numbers after them."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import paceline.data as pd
from paceline.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("nothing_left")
TENSORS = TensorDataset(torch.arange(50).float().view(50, 1).repeat(1, 3), torch.arange(50))


class Own(Dataset[Any]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((2,), float(index)), "name": str(index), "y": index}


class Slow(Own):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0005)
        return super().__getitem__(index)


class Random(Own):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2) + index


class Counts(Own):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.calls


class Box:
    __slots__ = ("inner", "n")

    def __init__(self, n: Any = 0) -> None:
        self.n = n


class CountsDeep(Own):
    """Counts in a box inside a box, in an array, in a function's closure, in its class or in an iterator."""

    total = 0

    def __init__(self, where: str) -> None:
        self.where, self.box = where, {"outer": [Box(Box())]}
        self.array, self.counter, self.transform = np.zeros(1000, int), itertools.count(1), self._counting()

    def _counting(self) -> Any:
        n = 0

        def count() -> int:
            nonlocal n
            n += 1
            return n

        return count

    def __getitem__(self, index: int) -> Any:
        if self.where == "box":
            self.box["outer"][0].n.n += 1
            return self.box["outer"][0].n.n
        if self.where == "array":
            self.array[index] += 1
            return int(self.array.sum())
        if self.where == "class":
            type(self).total += 1
            return type(self).total
        return next(self.counter) if self.where == "iterator" else self.transform()


def counts_deep(where: str) -> Any:
    CountsDeep.total = 0
    return DataLoader(CountsDeep(where), 8)


class Streamed(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(20))


class Backwards(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(49, -1, -1))

    def __len__(self) -> int:
        return 50


COUNTED = ("box", "array", "class", "iterator", "closure")
LOADERS: dict[str, Any] = {
    "tensors": lambda: DataLoader(TENSORS, 8, shuffle=True),
    "in order": lambda: DataLoader(TENSORS, 8),
    "dropped": lambda: DataLoader(TENSORS, 8, shuffle=True, drop_last=True),
    "part": lambda: DataLoader(Subset(TENSORS, range(7, 49, 2)), 5, shuffle=True),
    "own": lambda: DataLoader(Own(), 8, shuffle=True),
    "slow": lambda: DataLoader(Slow(), 8, shuffle=True),
    "own collate": lambda: DataLoader(Own(), 8, collate_fn=lambda samples: [s["y"] for s in samples]),
    "generator": lambda: DataLoader(Own(), 8, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "generator, whole batches": lambda: DataLoader(Own(), 10, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: DataLoader(Own(), 8, sampler=WeightedRandomSampler(torch.arange(50.0), 30)),
    "twice": lambda: DataLoader(TENSORS, 8, sampler=RandomSampler(TENSORS, num_samples=80)),
    "own sampler": lambda: DataLoader(Own(), 8, sampler=Backwards()),
    "batch sampler": lambda: DataLoader(Own(), batch_sampler=BatchSampler(Backwards(), 7, False)),
    "random": lambda: DataLoader(Random(), 8, shuffle=True),
    "counts": lambda: DataLoader(Counts(), 8),
    **{f"counts in {where}": functools.partial(counts_deep, where) for where in COUNTED},
    "unbatched": lambda: DataLoader(Own(), None),
    "stream": lambda: DataLoader(Streamed(), 6),
    "list": lambda: DataLoader(list(range(30)), 4, shuffle=True),
}


def told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: told(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [told(item) for item in value]
    return value


@pytest.mark.parametrize("name", LOADERS)
def test_the_same_batches_and_the_same_numbers_after_them(name: str) -> None:
    def run(loader: Any) -> Any:
        torch.manual_seed(7)
        seen = []
        for _ in range(3):
            seen.append([told(batch) for batch in loader])
            seen.append(torch.rand(1).item())  # the script's stream stands where it would
        return seen

    dropped = pd.drop_in(LOADERS[name]())
    assert run(dropped) == run(LOADERS[name]())
    dropped.close()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_threads_and_processes_keep_the_order(kind: Any) -> None:
    dropped = pd.drop_in(LOADERS["own"](), kind=kind, parallel=2)
    torch.manual_seed(1)
    found = [told(batch) for _ in range(2) for batch in dropped]
    torch.manual_seed(1)
    loader = LOADERS["own"]()
    assert found == [told(batch) for _ in range(2) for batch in loader]
    assert any(stage.where == kind for stage in dropped.report().stages)
    dropped.close()


@pytest.mark.parametrize("where", COUNTED)
def test_a_dataset_that_counts_in_what_it_holds(where: str) -> None:
    dropped = pd.drop_in(counts_deep(where), kind="processes", parallel=2)
    found = [told(batch) for _ in range(2) for batch in dropped]
    assert found == [told(batch) for loader in [counts_deep(where)] for _ in range(2) for batch in loader]
    dropped.close()


def test_a_loop_that_is_left_early_goes_on_as_it_would() -> None:
    def run(loader: Any) -> Any:
        torch.manual_seed(3)
        found = []
        for _ in range(3):
            for number, batch in enumerate(loader):
                found.append(told(batch))
                if number == 2:
                    break
        return found, torch.rand(1).item()

    for name in ("tensors", "own", "generator", "weighted"):
        dropped = pd.drop_in(LOADERS[name](), **({"kind": "threads"} if name == "own" else {}))
        assert run(dropped) == run(LOADERS[name]())
        dropped.close()


@pytest.mark.parametrize("kind", ["auto", "processes"])
def test_a_dataset_that_the_script_changes_between_epochs(kind: Any) -> None:
    class Held(Own):
        def __init__(self) -> None:
            self.x = torch.arange(50)

        def __getitem__(self, index: int) -> Any:
            return self.x[index]

    held, tensors = Held(), TensorDataset(torch.arange(50))
    for dataset in (held, tensors):
        dropped = pd.drop_in(DataLoader(dataset, 25), kind=kind, parallel=1 if kind == "processes" else None)
        found = [told(batch) for batch in dropped]
        if dataset is held:
            held.x = held.x + 100
        else:
            tensors.tensors[0].add_(100)
        found += [told(batch) for batch in dropped]
        assert str(found).count("149") == 1
        dropped.close()


def test_what_must_stay_in_one_place_says_why() -> None:
    for name, why in {
        "random": "draws random",
        **dict.fromkeys(("counts", *(f"counts in {where}" for where in COUNTED)), "changes its own state"),
        "own sampler": "defined by the script",
        "stream": "iterable",
    }.items():
        dropped = pd.drop_in(LOADERS[name]())
        list(dropped)
        assert why in dropped.why


def test_it_looks_like_the_loader() -> None:
    loader = DataLoader(TENSORS, 8, drop_last=True)
    dropped = pd.drop_in(loader)
    assert (len(dropped), dropped.batch_size, dropped.dataset) == (6, 8, TENSORS)
    with pytest.raises(UsageError, match="got a list"):
        pd.drop_in([1, 2])


def test_a_sample_that_cannot_be_loaded_is_named() -> None:
    class Bad(Own):
        def __getitem__(self, index: int) -> Any:
            if index == 30:
                raise KeyError("gone")
            return index

    with pytest.raises(DataError, match=r"KeyError: 'gone', on the batch of samples 24, 25, 26, 27, …"):
        list(pd.drop_in(DataLoader(Bad(), 8)))
