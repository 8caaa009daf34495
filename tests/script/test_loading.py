"""Loading: every worker gets the batches that one process gets; each sample is loaded by one worker."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from staged import staged
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import rng as script_rng
from paceline.script import tree
from paceline.script.seams.loading import keeps_generator

SIZE = 11  # uneven for 2 and 3 workers and for batches of 4: the last batch has 3 rows


class Sample(NamedTuple):
    x: Any
    label: Any


class Samples(Dataset):
    """`make(i)` is sample i."""

    def __init__(self, make: Callable[[int], Any], size: int = SIZE) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Stream(IterableDataset):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(self.size).float())


class Backwards(Sampler):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size - 1, -1, -1))


class Own(Dataset):
    """Keeps a random generator."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = {
            np.random.Generator: lambda: self.generator.random(),
            np.random.RandomState: lambda: self.generator.rand(),
            random.Random: lambda: self.generator.random(),
            torch.Generator: lambda: torch.rand(1, generator=self.generator).item(),
        }
        return torch.tensor([index, draws[type(self.generator)]()])


class Flip:
    """A transform with a generator, in a dataset."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return -x if self.rng.random() < 0.5 else x


def x(i: int) -> torch.Tensor:
    return torch.arange(3.0) + i


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def rows(make: Callable[[int], Any], **options: Any) -> Callable[[], DataLoader]:
    return lambda: DataLoader(Samples(make), **{"batch_size": 4} | options)


def flipped() -> DataLoader:
    flip = Flip()
    return DataLoader(Samples(lambda i: flip(x(i))), batch_size=4)


_shared_rng = np.random.default_rng(4)


def drawn_from_a_global(i: int) -> float:
    return _shared_rng.random() + i


def drawn_in_a_function(i: int) -> float:
    """What most people write: a helper that draws from a generator of the module's."""
    return sum(drawn_from_a_global(i) for _ in range(2))


# Each makes a loader whose batches must be those of one process.
LOADERS: dict[str, Callable[[], DataLoader]] = {
    "in order": rows(x),
    "shuffled": rows(x, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(
        Samples(x), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "last batch dropped": rows(x, shuffle=True, drop_last=True),
    "batches larger than the data": rows(x, batch_size=100),
    "batches of one": rows(x, batch_size=1),
    "batches of two": rows(x, batch_size=2),
    "a sampler": lambda: DataLoader(Samples(x), batch_size=4, sampler=Backwards(SIZE)),
    "a weighted sampler": lambda: DataLoader(
        Samples(x), batch_size=4, sampler=WeightedRandomSampler(range(1, SIZE + 1), 9)
    ),
    "a batch sampler": lambda: DataLoader(
        Samples(x), batch_sampler=BatchSampler(RandomSampler(range(SIZE)), 5, drop_last=False)
    ),
    "batches of changing sizes": lambda: DataLoader(Samples(x), batch_sampler=[[1], [2, 3, 4], [0], [5, 6]]),
    "batches of tuples of indices": lambda: DataLoader(Samples(x), batch_sampler=[(1, 2, 3), (4, 5)]),
    "no batches": lambda: DataLoader(Samples(x), batch_size=None),
    "no batches, made by the sampler": lambda: DataLoader(
        Samples(lambda ids: torch.tensor(ids)),
        batch_size=None,
        sampler=BatchSampler(SequentialSampler(range(7)), 3, False),
    ),
    "an iterable dataset": lambda: DataLoader(Stream(), batch_size=4),
    "tensors": lambda: DataLoader(TensorDataset(torch.arange(22.0).view(11, 2), torch.arange(11)), batch_size=4),
    "a subset": lambda: DataLoader(Subset(Samples(x), [3, 1, 8, 9, 2]), batch_size=3),
    "a random split": lambda: DataLoader(random_split(Samples(x), [7, 4])[0], batch_size=3),
    "joined datasets": lambda: DataLoader(ConcatDataset([Samples(x), Samples(x)]), batch_size=4, shuffle=True),
    "a list": lambda: DataLoader([x(i) for i in range(7)], batch_size=3),
    "pairs": rows(lambda i: (x(i), i)),
    "a list a sample": rows(lambda i: [x(i), [i, float(i)]]),
    "dictionaries": rows(lambda i: {"x": x(i), "deep": {"y": i, "text": f"sample {i}"}}),
    "ordered dictionaries": rows(lambda i: OrderedDict(b=x(i), a=i)),
    "named tuples": rows(lambda i: Sample(x(i), i)),
    "texts": rows(lambda i: (x(i), f"sample {i}")),
    "texts alone": rows(lambda i: f"sample {i}"),
    "lists of texts": rows(lambda i: (x(i), ["a", f"b{i}"])),
    "bytes": rows(lambda i: (x(i), b"%d" % i)),
    "numbers": rows(lambda i: (i, i / 2, i % 2 == 0)),
    "arrays": rows(lambda i: (np.full((2, 3), i), np.float32(i), np.int16(i))),
    "scalars": rows(lambda i: torch.tensor(i)),
    "halves and complex numbers": rows(lambda i: (x(i).bfloat16(), x(i).to(torch.complex64), x(i) > 2)),
    "empty tensors": rows(lambda i: torch.empty(0, 3)),
    "tensors with gaps": rows(lambda i: torch.arange(12.0).view(3, 4).t() + i),
    "tensors that need a gradient": rows(lambda i: x(i).requires_grad_()),
    "large samples": rows(lambda i: torch.full((300_000,), float(i)), batch_size=6),
    "padded by a collate function": rows(lambda i: torch.ones(i % 3 + 1) * i, collate_fn=pad),
    "kept as lists": rows(x, collate_fn=list),
    "a collate function of the batch's mean": rows(
        x, collate_fn=lambda s: default_collate(s) - default_collate(s).mean(0)
    ),
    "drawn by torch": rows(lambda i: x(i) + torch.rand(3), shuffle=True),
    "drawn by numpy": rows(lambda i: x(i).numpy() + np.random.rand(3), shuffle=True),
    "drawn by random": rows(lambda i: i + random.random(), shuffle=True),
    "some drawn": rows(lambda i: x(i) + (torch.rand(1) if i % 4 == 1 else 0)),
    "one drawn, late": rows(lambda i: x(i) + (torch.rand(1) if i == 9 else 0)),
    "own generator of numpy": lambda: DataLoader(Own(np.random.default_rng(1)), batch_size=4),
    "own old generator of numpy": lambda: DataLoader(Own(np.random.RandomState(1)), batch_size=4),
    "own generator of Python": lambda: DataLoader(Own(random.Random(1)), batch_size=4),
    "own generator of torch": lambda: DataLoader(Own(torch.Generator().manual_seed(1)), batch_size=4),
    "own generator in a transform": flipped,
    "a generator that is global": rows(drawn_from_a_global),
    "a generator that is global, in a function": rows(drawn_in_a_function),
    "own generator in a bound method": lambda: DataLoader(Samples(Own(random.Random(1)).__getitem__), batch_size=4),
    "own generator in a partial": lambda: DataLoader(
        Samples(functools.partial(lambda rng, i: i + rng.random(), random.Random(1))), batch_size=4
    ),
    "own generator in a default": lambda: DataLoader(
        Samples(lambda i, rng=random.Random(1): i + rng.random()),  # noqa: B008
        batch_size=4,
    ),
    "own generator in a subset": lambda: DataLoader(Subset(Own(random.Random(1)), list(range(9))), batch_size=4),
    "sparse tensors": rows(
        lambda i: torch.eye(3).to_sparse() * (i + 1), collate_fn=lambda s: torch.stack(s).to_dense()
    ),
    "nothing": lambda: DataLoader(Samples(x, 0), batch_size=4),
    "two loader processes": rows(lambda i: (x(i), f"{i}"), num_workers=2, shuffle=True),
    "two loader processes that stay": rows(x, num_workers=2, persistent_workers=True),
    "two loader processes that draw": rows(lambda i: x(i) + torch.rand(3), num_workers=2),
    "a loader process and an iterable dataset": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
}


def played(make: Callable[[], DataLoader], epochs: int = 2) -> list[Any]:
    """All that a script gets of a loader, and a number drawn after each epoch."""
    before, rng = script_rng.snapshot(), _shared_rng.bit_generator.state
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    try:
        loader, seen = make(), []
        for _ in range(epochs):
            seen.append([tree.replace(batch, kept) for batch in loader])
            seen.append([torch.rand(1).item(), float(np.random.rand()), random.random()])
        return [*seen, _length(loader)]
    finally:
        script_rng.restore(before)
        _shared_rng.bit_generator.state = rng


def kept(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _length(loader: DataLoader) -> int | None:
    return None if isinstance(loader.dataset, IterableDataset) else len(loader)


def same(a: Any, b: Any) -> bool:
    if tree.structure(a) != tree.structure(b):
        return False
    return all(
        type(p) is type(q) and (p.dtype is q.dtype and torch.equal(p, q) if isinstance(p, torch.Tensor) else p == q)
        for p, q in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


def played_by_workers(group: Group, name: str) -> list[Any]:
    with staged(group):
        return played(LOADERS[name])


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", LOADERS)
def test_every_worker_gets_the_batches_of_one_process(pool: Any, name: str, world: int) -> None:
    expected = played(LOADERS[name])
    for rank, found in enumerate(pool(world).run(played_by_workers, name)):
        assert same(found, expected), f"worker {rank}:\n{found}\ninstead of\n{expected}"


# -- who loads what ----------------------------------------------------------------------------------------------------


def watched(make: Callable[[int], Any], loaded: list[int]) -> Samples:
    """Logs what is loaded. The log is in a module, so that the dataset does not seem to keep count."""
    log: Any = ModuleType("log")
    log.loaded = loaded

    def written_down(index: int) -> Any:
        log.loaded.append(index)
        return make(index)

    return Samples(written_down)


def loaded_by(group: Group, shuffle: bool, batches: int) -> list[int]:
    """What a worker loads after the first batch of the first epoch, which is the proof."""
    loaded: list[int] = []
    with staged(group):
        loader = DataLoader(watched(x, loaded), batch_size=4, shuffle=shuffle)
        next(iter(loader))
        loaded.clear()
        for _ in range(batches):
            list(loader)
    return loaded


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_sample_is_loaded_by_one_worker(pool: Any, shuffle: bool) -> None:
    loaded = pool(3).run(loaded_by, shuffle, 1)
    assert sorted(index for each in loaded for index in each) == list(range(SIZE))
    assert all(len(each) < SIZE / 2 for each in loaded)


def first_batch(group: Group) -> list[int]:
    loaded: list[int] = []
    with staged(group):
        next(iter(DataLoader(watched(x, loaded), batch_size=4)))
    return loaded


def test_the_first_batch_is_loaded_by_everybody_as_the_proof(pool: Any) -> None:
    assert pool(2).run(first_batch) == [[0, 1, 2, 3]] * 2


def loaded_whole_by(group: Group, name: str) -> int:
    loaded: list[int] = []
    make, options = WHOLE[name]
    with staged(group):
        loader = DataLoader(watched(make, loaded), batch_size=4, **options)
        for _ in range(2):
            list(loader)
        loaded.clear()
        list(loader)
        return len(loaded)


WHOLE: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "it draws": (lambda i: x(i) + torch.rand(3), {}),
    "it draws for some": (lambda i: x(i) + (torch.rand(1) if i % 4 == 1 else 0), {}),
    "it is collated by the script": (lambda i: torch.ones(i % 3 + 1), {"collate_fn": pad}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_cannot_be_dealt_out_is_loaded_whole_by_every_worker(pool: Any, name: str) -> None:
    assert pool(2).run(loaded_whole_by, name) == [SIZE, SIZE]


class Counting(Dataset):
    """Changes itself while it loads: its samples depend on how many were loaded before."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count * 100 + index


def counted(group: Group | None) -> list[list[int]]:
    loader = DataLoader(Counting(), batch_size=4)
    return [batch.tolist() for _ in range(2) for batch in loader]


def test_a_dataset_that_counts_what_it_loads_counts_all_of_it(pool: Any) -> None:
    assert pool(2).run(on_stage, counted) == [counted(None)] * 2


def some_drawn_in_processes(group: Group) -> list[Any] | str:
    with staged(group):
        try:
            return played(rows(lambda i: x(i) + (torch.rand(3) if i == 9 else 0), num_workers=2))
        except ScriptError as error:
            return str(error)


@pytest.mark.parametrize("world", [2, 3])
def test_loader_processes_that_draw_for_a_late_sample_only_are_right_or_refused(pool: Any, world: int) -> None:
    expected = played(rows(lambda i: x(i) + (torch.rand(3) if i == 9 else 0), num_workers=2))
    for found in pool(world).run(some_drawn_in_processes):
        assert same(found, expected) if isinstance(found, list) else "num_workers=0" in found


# -- iterators ---------------------------------------------------------------------------------------------------------


def left_early(group: Group | None) -> list[Any]:
    torch.manual_seed(0)
    loader = DataLoader(Samples(x), batch_size=4, shuffle=True)
    seen = [next(iter(loader)) for _ in range(3)]
    for batch in loader:
        seen.append(batch)
        break
    return [*seen, *loader, torch.rand(1).item()]


def zipped(group: Group | None) -> list[Any]:
    torch.manual_seed(0)
    one = DataLoader(Samples(x), batch_size=4, shuffle=True)
    other = DataLoader(Samples(lambda i: f"text {i}", 30), batch_size=3, shuffle=True)
    return list(zip(one, other, strict=False))


def nested(group: Group | None) -> list[Any]:
    """A validation in the middle of an epoch, from the same loader class."""
    torch.manual_seed(0)
    seen = []
    for batch in DataLoader(Samples(x), batch_size=4, shuffle=True):
        seen += [batch, *DataLoader(Samples(x, 5), batch_size=2)]
    return seen


@pytest.mark.parametrize("script", [left_early, zipped, nested], ids=lambda s: s.__name__)
def test_iterators_may_be_left_zipped_and_nested(pool: Any, script: Any) -> None:
    expected = script(None)
    for found in pool(2).run(on_stage, script):
        assert same(found, expected)


def on_stage(group: Group, script: Callable[..., Any]) -> Any:
    with staged(group):
        return script(group)


def written_to(group: Group) -> list[Any]:
    """A batch belongs to the script: changing it must not reach another worker, nor the next batch."""
    seen = []
    with staged(group):
        for batch in DataLoader(Samples(x), batch_size=4):
            batch.add_(100 * (group.rank + 1))
            seen.append(batch)
    return [(batch - 100 * (group.rank + 1)) for batch in seen]


def test_a_batch_belongs_to_the_script(pool: Any) -> None:
    expected = list(DataLoader(Samples(x), batch_size=4))
    for found in pool(3).run(written_to):
        assert same(found, expected)


# -- batch × N ---------------------------------------------------------------------------------------------------------


def scaled(group: Group, options: dict[str, Any], data: str) -> tuple[list[list[float]], int | None]:
    with staged(group, batch="scale"):
        made: Any = {"map": Samples(lambda i: torch.tensor(float(i))), "stream": Stream()}[data]
        loader = DataLoader(made, **options)
        return [batch.tolist() for batch in loader], _length(loader)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 2}, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]),
        ({"batch_size": 2, "drop_last": True}, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]),
        ({"batch_size": 4}, [list(range(11))]),
        ({"batch_sampler": [[3], [1, 2], [0], [4]]}, [[3, 1, 2, 0], [4]]),
    ],
    ids=["in order", "last dropped", "one batch", "a batch sampler"],
)
def test_batch_scale_makes_the_global_batch_of_n_batches(pool: Any, options: dict[str, Any], expected: Any) -> None:
    for batches, length in pool(3).run(scaled, options, "map"):
        assert batches == expected
        assert length == len(expected)


def test_batch_scale_of_an_iterable_dataset(pool: Any) -> None:
    for batches, _ in pool(3).run(scaled, {"batch_size": 2}, "stream"):
        assert batches == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


# -- the slice view ----------------------------------------------------------------------------------------------------


def slices(group: Group, data: str, batch_size: int) -> tuple[list[Any], list[int]]:
    """A model in training mode was met: from then on batches are cut."""
    with staged(group, sliced=True) as stage:
        model = torch.nn.Linear(1, 1)
        made: Any = {"map": Samples(lambda i: torch.tensor([float(i)])), "stream": StreamOfRows()}[data]
        seen, sizes = [], []
        for batch in DataLoader(made, batch_size=batch_size):
            model(batch).sum().backward()
            seen.append(batch.flatten().tolist())
            sizes.append(stage.views.batch_size(batch))
        return seen, sizes


class StreamOfRows(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(float(SIZE)).view(SIZE, 1))


@pytest.mark.parametrize("data", ["map", "stream"])
def test_in_the_slice_view_each_worker_holds_its_rows(pool: Any, data: str) -> None:
    found = pool(2).run(slices, data, 4)
    for number, whole in enumerate([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]):
        held = [seen[number] for seen, _ in found]
        assert [row for rows in held for row in rows] == whole, "each row is held by one worker, in order"
        assert held[0] != whole
    assert all(sizes == [4, 4, 3] for _, sizes in found)


@pytest.mark.parametrize("data", ["map", "stream"])
def test_in_the_slice_view_a_worker_without_rows_holds_a_borrowed_one(pool: Any, data: str) -> None:
    for seen, sizes in pool(3).run(slices, data, 2):
        assert all(len(rows) == 1 for rows in seen)
        assert sizes == [2, 2, 2, 2, 2, 1]


def evaluated(group: Group) -> list[Any]:
    with staged(group, sliced=True):
        model = torch.nn.Linear(3, 1)
        for batch in DataLoader(Samples(x), batch_size=4):
            model(batch).sum().backward()
        model.eval()
        with torch.no_grad():
            return [batch for batch in DataLoader(Samples(x), batch_size=4) if len(model(batch))]


def test_in_the_slice_view_evaluation_still_sees_whole_batches(pool: Any) -> None:
    expected = list(DataLoader(Samples(x), batch_size=4))
    for found in pool(2).run(evaluated):
        assert same(found, expected)


# -- which datasets keep a generator -----------------------------------------------------------------------------------


class Holder:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Cyclic:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize(
    ("dataset", "keeps"),
    [
        (Own(random.Random(1)), True),
        (Holder(transform=Holder(rng=np.random.default_rng(1))), True),
        (Holder(transforms=[abs, Holder(rng=np.random.RandomState(1))]), True),
        (Holder(table={"a": torch.Generator()}), True),
        (Samples(drawn_from_a_global), True),
        (Samples(drawn_in_a_function), True),
        (Samples(lambda i: np.random.rand() + random.random() + torch.rand(1)), False),
        (Samples(x), False),
        (TensorDataset(torch.ones(3)), False),
        ([torch.ones(2)] * 1000, False),
        (Cyclic(), False),
        (Holder(text="x" * 10000, number=3, none=None, kind=int), False),
    ],
    ids=[
        "itself",
        "in a transform",
        "in a list",
        "in a table",
        "global",
        "in a function",
        "the script's streams",
        "none",
        "tensors",
        "a list",
        "a cycle",
        "odds",
    ],
)
def test_a_dataset_that_keeps_a_generator_is_found(dataset: Any, keeps: bool) -> None:
    assert keeps_generator(dataset) is keeps
