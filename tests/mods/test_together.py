"""Mods together, in any order that they are typed in: what the least precise of them promises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from paceline.comm.group import Group
from paceline.errors import UsageError
from paceline.mods import catalog


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.norm(self.conv(x)))


def trained(group: Group, mods: list[str], size: int = 6) -> Any:
    """Losses of two epochs of a small picture classifier, and of its evaluation."""
    plain = BatchSampler.__iter__
    try:
        return _trained(group, mods, size)
    finally:
        BatchSampler.__iter__ = plain  # type: ignore[method-assign]


def _trained(group: Group, mods: list[str], size: int) -> Any:
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            mod = catalog.load(asked)
            mod.on_stage(stage)
            if getattr(mod, "scaler", None) is not None:
                mod.scaler.scale = 1024.0  # at the usual first one some steps of this script are infinite
        torch.manual_seed(4)
        model = nn.Sequential(nn.Conv2d(3, 4, 1), Block(), Block(), Block(), nn.Flatten(), nn.Linear(64, 3))
        data = TensorDataset(torch.randn(40, 3, 4, 4), torch.arange(40) % 3)
        loader, held_out = DataLoader(data, size, shuffle=True), DataLoader(data, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        losses = []
        for _ in range(2):
            model.train()
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                losses.append(sum(F.cross_entropy(model(x), y).item() for x, y in held_out))
        return losses


EXACT = ["batch=x2:none", "accumulate=3", "checkpointing", "fused_optimizer", "channels_last"]


@pytest.mark.parametrize("inputs", ["resident", "loader=1"])
@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_all_of_them_at_once(pool: Any, inputs: str, workers: int) -> None:
    by_hand = trained(lone_group(), [], size=12)
    mods = [*EXACT, inputs]
    found = [trained(lone_group(), mods)] if workers == 1 else pool(2).run(trained, mods)
    for losses in found:
        assert losses == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("precision", [pytest.param("precision=bf16", marks=pytest.mark.slow), "precision=fp16"])
def test_all_of_them_in_less_precision(pool: Any, precision: str) -> None:
    by_hand = trained(lone_group(), [], size=12)
    for losses in pool(2).run(trained, [precision, *EXACT, "resident"]):
        assert losses == pytest.approx(by_hand, rel=0.05)


def test_the_order_in_which_they_are_typed_is_no_matter() -> None:
    by_hand = trained(lone_group(), [], size=12)
    for order in itertools.permutations(["batch=x2:none", "accumulate=3", "checkpointing"]):
        assert trained(lone_group(), list(order)) == pytest.approx(by_hand, rel=1e-4), order


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # that the compiler looks at
def test_micro_batches_of_a_compiled_model(pool: Any) -> None:
    by_hand = trained(lone_group(), [], size=12)
    for mods in (["compile", "accumulate=2", "batch=x2:none"], ["accumulate=2", "compile", "batch=x2:none"]):
        assert trained(lone_group(), mods) == pytest.approx(by_hand, rel=1e-3)


def test_exclusions_hold_in_both_orders() -> None:
    for name, entry in catalog.CATALOG.items():
        for other in entry.excludes:
            mine, theirs = _typed(name), other if "=" in other else _typed(other)
            for order in ([mine, theirs], [theirs, mine]):
                with pytest.raises(UsageError, match="exclude each other"):
                    catalog.parse(order)


def _typed(name: str) -> str:
    entry = catalog.CATALOG[name]
    return f"{name}=2" if entry.values == ("N",) else f"{name}={entry.values[0]}" if entry.values else name
