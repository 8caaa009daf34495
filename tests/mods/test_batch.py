"""The mod `batch`: what a script would do whose author had written the other batch and the other learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from staged import lone_group, staged
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.mods import catalog

SAMPLES = 50


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take longer than all that is computed here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Stream(IterableDataset[Any]):
    """Samples one by one, or batches of `size` of its own."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, size: int = 0) -> None:
        self.x, self.y, self.size = x, y, size

    def __len__(self) -> int:
        return -(-len(self.x) // (self.size or 1))

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*((t.split(self.size) if self.size else t) for t in (self.x, self.y)), strict=True)


class OwnSampler:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return -(-SAMPLES // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        yield from (part.tolist() for part in torch.randperm(SAMPLES).split(self.size))


def loader_of(kind: str, size: int, **options: Any) -> DataLoader[Any]:
    torch.manual_seed(3)
    x = torch.randn(SAMPLES, 4, dtype=torch.float64)
    y = torch.arange(SAMPLES) % 3
    if kind == "stream":
        return DataLoader(Stream(x, y), size, **options)
    if kind == "batches":
        return DataLoader(Stream(x, y, size), None, **options)
    if kind == "own sampler":
        return DataLoader(TensorDataset(x, y), batch_sampler=OwnSampler(size), **options)  # type: ignore[arg-type]
    if kind == "given sampler":
        dataset = TensorDataset(x, y)
        return DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), size, False), **options)
    return DataLoader(TensorDataset(x, y), size, shuffle=True, **options)


def trained(group: Group, mods: list[str], kind: str = "map", size: int = 6, lr: float = 0.1, how: str = "SGD") -> Any:
    """Losses, batch sizes, lengths and what the script sees of its learning rate, over two epochs with evaluation."""
    plain = BatchSampler.__iter__
    try:
        return _trained(group, mods, kind, size, lr, how)
    finally:
        BatchSampler.__iter__ = plain  # type: ignore[method-assign]


def _trained(group: Group, mods: list[str], kind: str, size: int, lr: float, how: str) -> Any:
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        loader, held_out = loader_of(kind, size), loader_of("map", 5)
        torch.manual_seed(5)
        model = nn.Linear(4, 3).double()
        optimizer = getattr(torch.optim, how)(model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        seen: dict[str, Any] = {"before": len(loader), "sizes": [], "losses": [], "rates": [], "held out": []}
        for _ in range(2):
            model.train()
            for inputs, labels in loader:
                loss = F.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen["losses"].append(loss.item())
                seen["sizes"].append(len(inputs))
                seen["rates"].append(optimizer.param_groups[0]["lr"])
            schedule.step()
            model.eval()
            with torch.no_grad():
                for inputs, _labels in held_out:
                    model(inputs)
                    seen["held out"].append(len(inputs))
        seen |= {"after": len(loader), "length held out": len(held_out), "notices": stage.notices}  # type: ignore[attr-defined]
        return seen


@pytest.mark.parametrize("kind", ["map", "given sampler", "own sampler", "stream", "batches"])
@pytest.mark.parametrize("value", ["24", "x4"])
def test_trains_as_a_script_with_that_batch_and_learning_rate(kind: str, value: str) -> None:
    by_hand = trained(lone_group(), [], kind, size=24, lr=0.4)
    found = trained(lone_group(), [f"batch={value}"], kind)
    assert found["losses"] == pytest.approx(by_hand["losses"], rel=1e-12)
    assert found["sizes"] == by_hand["sizes"] == [24, 24, 2] * 2
    assert found["rates"] == pytest.approx([0.1] * 3 + [0.09] * 3), "the script never sees the other learning rate"
    assert found["after"] == by_hand["after"] == 3
    if kind in ("map", "given sampler", "stream") or value == "x4":  # else its first batch must tell
        assert found["before"] == 3
    assert found["held out"] == by_hand["held out"] == [5] * 20
    assert found["length held out"] == 10
    assert [n for n in found["notices"] if n.startswith("batch")] == [
        "batch 6 → 24, learning rate × 4 (linear rule)",
    ]


@pytest.mark.crossed("mods")
@pytest.mark.parametrize("kind", ["map", "own sampler", "stream", "batches"])
@pytest.mark.parametrize("mods", [["batch=x4"], ["batch=24", "resident"], ["batch=x4", "loader=1"]], ids=str)
def test_on_two_workers_and_with_the_mods_of_the_input(pool: Any, kind: str, mods: list[str]) -> None:
    by_hand = trained(lone_group(), [], kind, size=24, lr=0.4)
    for found in pool(2).run(trained, mods, kind):
        assert found["sizes"] == by_hand["sizes"]
        assert found["losses"] == pytest.approx(by_hand["losses"], rel=1e-9)
        assert found["held out"] == by_hand["held out"]
        assert found["after"] == 3


@pytest.mark.parametrize(
    ("value", "how", "times"),
    [
        ("x4", "SGD", 4.0),
        ("x4", "AdamW", 2.0),
        ("x4", "Adagrad", 2.0),
        ("x4:linear", "AdamW", 4.0),
        ("x4:sqrt", "SGD", 2.0),
        ("x4:none", "SGD", 1.0),
        ("3", "SGD", 0.5),
        ("x0.5", "SGD", 0.5),
    ],
)
def test_the_learning_rate_follows_the_rule(value: str, how: str, times: float) -> None:
    found = trained(lone_group(), [f"batch={value}"], how=how)
    by_hand = trained(lone_group(), [], size=3 if times == 0.5 else 24, lr=0.1 * times, how=how)
    assert found["losses"] == pytest.approx(by_hand["losses"], rel=1e-12)
    assert found["sizes"] == by_hand["sizes"]


@given(st.integers(1, 12), st.integers(1, 60), st.booleans(), st.booleans())
def test_any_size_gives_the_batches_of_a_loader_made_so(size: int, new: int, drop: bool, shuffle: bool) -> None:
    def batches(loader: Any) -> list[list[float]]:
        torch.manual_seed(8)
        return [x.tolist() for (x,) in loader]

    dataset = TensorDataset(torch.arange(float(SAMPLES)))
    made = DataLoader(dataset, min(new, SAMPLES), shuffle=shuffle, drop_last=drop)
    wanted, length = batches(made), len(made)
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse([f"batch={new}"])[0]).on_stage(stage)
        model = nn.Linear(1, 1)  # in sight, in training mode
        loader = DataLoader(dataset, size, shuffle=shuffle, drop_last=drop)
        assert len(loader) == length
        assert batches(loader) == wanted
        assert len(loader) == length
        model.eval()
        with torch.no_grad():
            plainly = SAMPLES // size if drop else math.ceil(SAMPLES / size)
            assert len(batches(loader)) == plainly, "as the script wrote"


@pytest.mark.parametrize("kind", ["own sampler", "batches"])
def test_batches_that_the_script_makes_itself_cannot_be_cut(kind: str) -> None:
    for value in ("2", "x1.5"):
        with pytest.raises(ScriptError, match="joined, not cut"):
            trained(lone_group(), [f"batch={value}"], kind)


def test_a_batch_is_no_larger_than_its_dataset_and_the_learning_rate_follows() -> None:
    found = trained(lone_group(), ["batch=9000"])
    by_hand = trained(lone_group(), [], size=SAMPLES, lr=0.1 * SAMPLES / 6)
    assert found["sizes"] == [SAMPLES] * 2
    assert found["losses"] == pytest.approx(by_hand["losses"], rel=1e-12)
    assert "batch 6 → 50, learning rate × 8.333 (linear rule)" in found["notices"]


def test_a_script_without_a_loader_is_told() -> None:
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["batch=x2"])[0]).on_stage(stage)
        model = nn.Linear(4, 3)
        with pytest.raises(ScriptError, match="trains without a DataLoader"):
            model(torch.randn(6, 4)).sum().backward()


def test_batches_that_are_not_of_tensors_are_refused() -> None:
    class Odd:
        def __init__(self) -> None:
            self.names = {"a", "b"}

    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["batch=x2"])[0]).on_stage(stage)
        loader = DataLoader([(torch.zeros(2), Odd())] * 4, None, collate_fn=lambda batch: batch)  # type: ignore[arg-type]
        with pytest.raises(ScriptError, match="cannot be joined: Odd"):
            next(iter(loader))


def test_a_tensor_as_learning_rate_is_changed_where_it_lies_and_put_back() -> None:
    rate = torch.tensor(0.1, dtype=torch.float64)
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["batch=x4"])[0]).on_stage(stage)
        model, loader = nn.Linear(4, 3).double(), loader_of("map", 6)
        groups = [{"params": [p]} for p in model.parameters()]
        optimizer = torch.optim.SGD(groups, lr=rate)
        inputs, _ = next(iter(loader))
        model(inputs).sum().backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == 0.1
        for p, was in zip(model.parameters(), before, strict=True):
            torch.testing.assert_close(p.detach(), was - 0.4 * p.grad, rtol=1e-12, atol=0)  # type: ignore[operator]
