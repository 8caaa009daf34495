"""Sums and means over rows in 16 bits are rounded once, as in one process: workers' parts may nearly cancel out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pool import Pools
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.script.rows.tensor import Rows

ROWS = 1200
KINDS = (torch.bfloat16, torch.float16)


class Scaled(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def reductions(dtype: torch.dtype) -> list[Any]:
    """Values, kinds and the gradient. The first rows are positive, the last ones negative."""
    torch.manual_seed(0)
    x = (torch.rand(ROWS, 3) * 0.25 + torch.linspace(7, -7, ROWS).sign().unsqueeze(1)).to(dtype)
    model = Scaled(dtype)
    out = model(x)
    found: list[Any] = [out.sum(), out.mean(), out.nansum(), out.sum(0), out.mean((0, 1)), out.sum(dtype=torch.float32)]
    (found[1] + found[3].mean() * 0.01).backward()
    found.append(nn.functional.mse_loss(out, x + 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found += [out.sum(), out.mean(0)]
    return [[(value.dtype, value.tolist()) for value in found], model.scale.grad.item()]  # type: ignore[union-attr]


def sharded(group: Group, dtype: torch.dtype) -> tuple[bool, list[Any]]:
    with staged(group, gather_below=0):
        return isinstance(Scaled(dtype)(torch.ones(8, 2, dtype=dtype)), Rows), reductions(dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_sum_over_rows_is_rounded_once(pool: Pools, workers: int, dtype: torch.dtype) -> None:
    values, gradient = reductions(dtype)
    for stays, (found, found_gradient) in pool(workers).run(sharded, dtype):
        assert stays
        assert [kind for kind, _ in found] == [kind for kind, _ in values]
        for (_, value), (_, expected) in zip(found, values, strict=True):
            assert value == pytest.approx(expected, rel=torch.finfo(dtype).eps)
        assert found_gradient == pytest.approx(gradient, rel=4 * torch.finfo(dtype).eps)
