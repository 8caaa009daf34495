"""Mods of the input: the same samples in the same order, on one worker and on two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, TensorDataset

from paceline.comm.group import Group
from paceline.errors import UsageError
from paceline.mods import catalog


class Own(Dataset[Any]):
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index % 3


def trained(group: Group, mods: list[str], kind: str, **options: Any) -> Any:
    """Every batch's first numbers and every loss, of two epochs; and how batches were made."""
    plain = BatchSampler.__iter__
    try:
        return _trained(group, mods, kind, options)
    finally:
        BatchSampler.__iter__ = plain  # type: ignore[method-assign]


def _trained(group: Group, mods: list[str], kind: str, options: dict[str, Any]) -> Any:
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        x = torch.arange(50.0).view(50, 1).repeat(1, 4) / 50
        whole = TensorDataset(x, torch.arange(50) % 3)
        dataset: Any = {"tensors": whole, "part": Subset(whole, range(7, 49, 2)), "own": Own(x)}[kind]
        if options.pop("seeded", False):
            options["generator"] = torch.Generator().manual_seed(3)
        loader = DataLoader(dataset, 6, **{"shuffle": True} | options)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        seen = []
        for _ in range(2):
            for batch in loader:
                inputs, labels = batch
                loss = F.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append((type(batch), inputs[:, 0].tolist(), labels.tolist(), round(loss.item(), 5)))
        return (
            seen,
            hasattr(dataset, "__getitems__") and "give" in dataset.__getitems__.__qualname__,
            loader.num_workers,
        )


@pytest.mark.parametrize("kind", ["tensors", "part", "own"])
@pytest.mark.parametrize("mod", ["resident", "loader=2"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_samples_in_the_same_order(pool: Any, kind: str, mod: str, workers: int) -> None:
    plain, _, _ = trained(lone_group(), [], kind)
    found = [trained(lone_group(), [mod], kind)] if workers == 1 else pool(2).run(trained, [mod], kind)
    for seen, is_resident, processes in found:
        assert [step[:3] for step in seen] == [step[:3] for step in plain]
        assert [step[3] for step in seen] == pytest.approx([step[3] for step in plain], abs=2e-5)
        assert is_resident == (mod == "resident" and kind != "own"), "the mod was at work, where it applies"
        assert processes == (2 if mod == "loader=2" else 0)


@pytest.mark.parametrize("options", [{"shuffle": False}, {"drop_last": True}, {"seeded": True}])
@pytest.mark.parametrize("batch", [[], ["batch=10"], ["batch=x3"]])
def test_resident_keeps_every_loaders_order(options: dict[str, Any], batch: list[str]) -> None:
    plain, _, _ = trained(lone_group(), batch, "tensors", **options)
    seen, is_resident, _ = trained(lone_group(), ["resident", *batch], "tensors", **options)
    assert seen == plain
    assert is_resident


def test_both_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        catalog.parse(["resident", "loader=2"])
