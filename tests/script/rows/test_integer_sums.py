"""Sums of integers are exact: those above 2^53 as well, which a float64 cannot hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pool import Pools
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.script.rows import crossings

LARGE = 2**53
VALUES = [LARGE + 1, 1, -3, LARGE * 5 + 7, 2, -LARGE + 2, 9]
SMALL_TYPES = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Codes(nn.Module):
    """Returns integers, and has a parameter: its output stays sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes * 3 - 1


def sums() -> list[Any]:
    codes = torch.tensor(VALUES)
    out = Codes()(torch.stack([codes, codes.flip(0)], 1))
    return [out.sum().item(), out.sum(0).tolist(), out.sum(1).sum().item(), (out > 5).sum().item(), out.nansum().item()]


def sharded_sums(group: Group) -> list[Any]:
    with staged(group, gather_below=0):
        return sums()


@pytest.mark.parametrize("workers", [2, 3])
def test_a_sum_of_large_integers_has_all_its_digits(pool: Pools, workers: int) -> None:
    expected = sums()
    assert int(float(expected[0])) != expected[0]
    assert pool(workers).run(sharded_sums) == [expected] * workers


def blended(group: Group, dtype: torch.dtype, values: list[int], weights: list[float]) -> tuple[torch.Tensor, bool]:
    own = torch.tensor(values[group.rank]).to(dtype)
    found = crossings.blend(own, weights[group.rank], group)
    return found, own.eq(torch.tensor(values[group.rank]).to(dtype)).item()


@pytest.mark.parametrize("workers", [2, 3])
def test_a_blend_adds_integers_and_leaves_out_a_worker_without_rows(pool: Pools, workers: int) -> None:
    values, weights = [LARGE + 1, 4, LARGE * 3], [1.0, 0.0, 1.0]
    expected = sum(value for value, weight in zip(values[:workers], weights, strict=False) if weight)
    for found, kept in pool(workers).run(blended, torch.int64, values, weights):
        assert found.item() == expected
        assert kept  # the worker's own value is not changed


@pytest.mark.parametrize("dtype", SMALL_TYPES, ids=str)
def test_small_types_keep_their_type(pool: Pools, dtype: torch.dtype) -> None:
    values = [100, 0, 20]
    expected = torch.stack([torch.tensor(value).to(dtype) for value in values]).sum().to(dtype)
    for found, _ in pool(3).run(blended, dtype, values, [1.0, 1.0, 1.0]):
        assert found.dtype is dtype
        assert found.item() == expected.item()


def refused(group: Group) -> str:
    try:
        crossings.blend(torch.tensor(3), 0.5, group)
    except ValueError as error:
        return str(error)
    return "nothing raised"


def test_a_mean_of_integers_is_refused(pool: Pools) -> None:
    assert all("integers can be added up only" in text for text in pool(2).run(refused))


def summed_over_gloo(group: Group) -> int:
    run = replace(group._settings.run, backend="gloo")
    other = Group(replace(group._settings, run=run), store=group.store("integers over gloo"))
    total = torch.tensor([LARGE + 1 + group.rank])
    other.all_reduce(total, "a sum of integers")
    return int(total.item())


@pytest.mark.parametrize("workers", [2, 3])
def test_gloo_adds_integers_as_integers(pool: Pools, workers: int) -> None:
    expected = sum(LARGE + 1 + rank for rank in range(workers))
    assert pool(workers, "gloo").run(summed_over_gloo) == [expected] * workers
