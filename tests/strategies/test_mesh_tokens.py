"""Mesh: sequence parallelism. Between split layers each worker has some tokens; numbers are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pool import Pools
from test_mesh import SmallGPT, check, on_mesh, train
from torch import nn

from paceline.comm.group import Group

TOKENS = '"hidden:model; heads:model; vocab:model; tokens:model"'


def gpt(tied: bool, fused: bool, tokens: int) -> Any:
    torch.manual_seed(1)
    model = SmallGPT(tied=tied, fused=fused).double()
    ids = torch.randint(0, 10, (12, tokens + 1))
    return train(model, ids[:, :-1], ids[:, 1:])


@pytest.mark.parametrize(
    ("data", "tied", "fused", "tokens"),
    [
        (1, True, False, 4),
        (1, False, True, 5),
        # On two axes at once: another model, in the next test.
        pytest.param(2, False, True, 4, marks=pytest.mark.slow),
        pytest.param(2, True, False, 4, marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_of_one_process(pool: Pools, data: int, tied: bool, fused: bool, tokens: int) -> None:
    check(pool, f"mesh(data={data},model=2,layout={TOKENS})", gpt, tied, fused, tokens)


class Normed(nn.Module):
    """Other norms, and functions that need all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(6, 8), nn.RMSNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 4)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        x = x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return self.head(x.cumsum(1)[:, -1] + x.mean(1) + x[:, 0] + x.flatten(1)[:, :8] + x.transpose(0, 1).amax(0))


def normed() -> Any:
    torch.manual_seed(1)
    return train(Normed().double(), torch.randn(12, 4, 6, dtype=torch.float64), torch.randint(0, 4, (12,)))


@pytest.mark.parametrize("data", [1, 2])
def test_functions_that_need_all_tokens_get_them(pool: Pools, data: int) -> None:
    check(pool, f"mesh(data={data},model=2,layout={TOKENS})", normed)


def kept_for_backward(tokens: int) -> list[int]:
    """The number of values that a forward keeps."""
    torch.manual_seed(1)
    model = SmallGPT(tied=False, fused=False).double()
    kept = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if not isinstance(tensor, nn.Parameter):
            kept += getattr(tensor, "_local_tensor", tensor).numel()
        return tensor

    for _ in range(3):
        ids = torch.randint(0, 10, (8, tokens))
        kept = 0
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(ids)
    return [kept]


def count(group: Group, layout: str) -> int:
    (found,) = on_mesh(group, f"mesh(data=1,model=2,layout={layout})", kept_for_backward, 4)
    return int(found)


def test_a_worker_keeps_fewer_activations(pool: Pools) -> None:
    for fewer, all_of_them in zip(
        pool(2, "mesh").run(count, TOKENS),
        pool(2, "mesh").run(count, TOKENS.replace("; tokens:model", "")),
        strict=True,
    ):
        assert fewer < 0.75 * all_of_them
