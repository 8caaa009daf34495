"""The memory account of a worker: what holds its memory at the peak, by kind, module and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn

from paceline.profile.account import Keeper
from paceline.record.account import ACTIVATIONS, GRADIENTS, STATE, WEIGHTS, Account, read_account

ROWS, WIDTH, LAYERS = 64, 32, 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.linear(x)))


def model() -> nn.Module:
    return nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 5))


def accounted(folder: Path, train: Any, *, fails: bool = False) -> Account:
    """The account of `train()`, which is played as a script is."""
    with staged(lone_group()) as stage:
        keeper = Keeper(stage, folder)
        error = None
        try:
            with keeper:
                train()
        except torch.OutOfMemoryError as raised:
            assert fails
            error = raised
        keeper.close(error)
    account = read_account(folder, 0)
    assert account is not None
    return account


def steps(net: nn.Module, count: int, kept: list[Any] | None = None, device: str = "cpu") -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(ROWS, WIDTH, device=device), torch.randint(5, (ROWS,), device=device)
    for _ in range(count):
        loss = F.cross_entropy(net(x), y)
        if kept is not None:
            kept.append(net(x))  # with its graph
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_each_kind_has_the_bytes_that_it_must_have(tmp_path: Path) -> None:
    net = model()
    weights = sum(p.nbytes for p in net.parameters())
    account = accounted(tmp_path, lambda: steps(net, 4))
    assert account.of(WEIGHTS) == account.of(STATE) == weights
    assert account.of(GRADIENTS) == weights
    assert account.fixed == 3 * weights
    # Each layer keeps its linear's output, its norm's mean and scale, and the tanh. At the peak, an output of a norm is
    # there, too.
    rows = 4 * ROWS * WIDTH
    by_module = {(p.kind, p.module): p for p in account.parts}
    assert by_module[ACTIVATIONS, "*.linear"].bytes == LAYERS * rows
    assert by_module[ACTIVATIONS, "*.norm"].bytes == rows + LAYERS * 2 * 4 * ROWS
    assert by_module[ACTIVATIONS, "*"].bytes == LAYERS * rows
    assert by_module[ACTIVATIONS, "*"].line.startswith(f"{__file__}:")
    assert sum(part.bytes for part in account.parts) == pytest.approx(account.peak, rel=0.002)
    assert account.steps == 4
    assert account.step >= 2  # the first step has no optimizer state yet
    assert not account.leaks
    assert not account.failed


def test_what_is_freed_is_taken_out(tmp_path: Path) -> None:
    """A step without gradients keeps nothing."""
    net = model()

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(20):
                net(torch.randn(ROWS, WIDTH))

    account = accounted(tmp_path, evaluate)
    assert account.of(ACTIVATIONS) < 4 * 4 * ROWS * WIDTH
    assert account.of(GRADIENTS, STATE) == 0


def test_a_leak_is_named_by_its_line(tmp_path: Path) -> None:
    wide, kept = nn.Sequential(nn.Linear(WIDTH, 4096), nn.Linear(4096, 5)), list[Any]()
    account = accounted(tmp_path, lambda: steps(wide, 8, kept))
    grown = account.leaks[0]
    assert (grown.kind, grown.module) == (ACTIVATIONS, "*")
    assert grown.bytes >= 4 * ROWS * 4096
    assert grown.line.startswith(f"{__file__}:")


class Greedy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of …")
        return self.second(y)


def test_where_memory_ran_out_is_told(tmp_path: Path) -> None:
    account = accounted(tmp_path, lambda: steps(Greedy(), 1), fails=True)
    assert account.failed.startswith(f"{__file__}:")
    assert account.module == "Greedy"
    assert account.asked == int(1.5 * 2**30)
    assert {part.module for part in account.parts if part.kind == ACTIVATIONS} == {"first"}


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu_the_account_is_the_devices_own_peak(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    net = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()

    def train() -> None:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        x = torch.randn(32, 256, 512, device="cuda")
        for _ in range(4):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    account = accounted(tmp_path, train)
    assert account.peak == pytest.approx(account.allocated - before, rel=0.05)
