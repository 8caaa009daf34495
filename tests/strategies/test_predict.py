"""Distributed inference: every sample once, in order, as one process computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import paceline
from paceline.comm.group import Group
from paceline.script.seams import api

ROWS = torch.arange(23 * 3, dtype=torch.float64).view(23, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.BatchNorm1d(3).double(), nn.Linear(3, 2).double()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"logits": F.dropout(self.out(self.norm(x)), 0.5, self.training), "first": x[:, 0]}


class Noisy(Net):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": F.dropout(self.out(x), 0.5, training=True), "first": x[:, 0]}


class Augmented(Dataset):
    def __getitem__(self, index: int) -> torch.Tensor:
        return ROWS[index] + torch.rand(1, dtype=torch.float64)

    def __len__(self) -> int:
        return len(ROWS)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from ROWS


class Lengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x[:, : int(x[0, 0]) // 12 % 3 + 1]


LOADERS = {
    "plain": lambda: DataLoader(TensorDataset(ROWS, ROWS[:, 0]), 4),
    "shuffled": lambda: DataLoader(TensorDataset(ROWS), 5, shuffle=True, drop_last=True),
    "augmented": lambda: DataLoader(Augmented(), 4),
    "stream": lambda: DataLoader(Stream(), 4),
    "list": lambda: [ROWS[:7], ROWS[7:9], ROWS[9:]],
    "one batch": lambda: DataLoader(TensorDataset(ROWS), 23),
    "none": list,
}


def everything(kind: str, net: str = "Net") -> Any:
    """The outputs, and a number that is drawn afterwards."""
    model = globals()[net]().train()
    torch.manual_seed(1)
    outputs = paceline.predict(model, LOADERS[kind]())
    assert model.training
    return outputs, torch.rand(1).item(), getattr(model, "calls", 0)


def on_workers(group: Group, script: Any, *args: Any) -> Any:
    with staged(group) as stage:
        api.take_stage(stage)
        try:
            return script(*args)
        finally:
            api.take_stage(None)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("world", [2, 3])
def test_the_outputs_are_those_of_one_process(pool, world: int, kind: str) -> None:
    expected, drawn, calls = everything(kind)
    found = pool(world).run(on_workers, everything, kind)
    for outputs, later, _ in found:
        torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=0)
        assert later == drawn
    if kind in ("plain", "shuffled", "stream"):
        assert sum(number for *_, number in found) == calls  # no batch twice


def test_a_model_that_draws_random_numbers_is_computed_together(pool) -> None:
    expected, drawn, _ = everything("plain", "Noisy")
    for outputs, later, _ in pool(2).run(on_workers, everything, "plain", "Noisy"):
        torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=0)
        assert later == drawn


def test_outputs_that_do_not_fit_together_are_a_list(pool) -> None:
    expected, *_ = everything("plain", "Lengths")
    assert isinstance(expected, list)
    for outputs, *_ in pool(2).run(on_workers, everything, "plain", "Lengths"):
        torch.testing.assert_close(outputs, expected, rtol=0, atol=0)


def with_processes() -> Any:
    return paceline.predict(Net(), DataLoader(TensorDataset(ROWS), 4, num_workers=1))


def test_a_loader_with_processes(pool) -> None:
    for outputs in pool(2).run(on_workers, with_processes):
        torch.testing.assert_close(outputs, with_processes(), rtol=1e-12, atol=0)


def written(folder: str) -> list[str]:
    return paceline.predict(Net(), LOADERS["plain"](), write=folder, call=lambda net, batch: net(batch[0])["logits"])


def test_files_hold_every_batch_once(pool, tmp_path: Path) -> None:
    names, same = pool(2).run(on_workers, written, str(tmp_path / "out"))
    assert names == same
    found = {}
    for name in names:
        part = torch.load(name, weights_only=True)
        found |= dict(zip(part["batches"], part["outputs"], strict=True))
    outputs = torch.cat([found[number] for number in range(6)])
    torch.testing.assert_close(outputs, everything("plain")[0]["logits"], rtol=1e-12, atol=0)
