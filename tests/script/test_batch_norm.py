"""Batch norm in a sliced call, against nn.BatchNorm over the batch, in float64."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.mods import catalog

NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@dataclass(frozen=True)
class Case:
    """A model with batch norm, trained a few steps."""

    batch: int = 6
    dims: int = 1  # of the batch norm
    inner: tuple[int, ...] = ()  # sizes behind the channels
    momentum: float | None = 0.1
    affine: bool = True
    track: bool = True
    steps: int = 2
    input_needs_grad: bool = False
    second: bool = False
    contiguous: bool = False  # the batch norm's input; else its channels are innermost
    dtype: torch.dtype = torch.float64


class Model(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.mix, self.contiguous = nn.Linear(3, 3), case.contiguous
        self.norm = NORMS[case.dims](3, momentum=case.momentum, affine=case.affine, track_running_stats=case.track)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.mix(x.movedim(1, -1)).movedim(-1, 1)
        return self.norm(mixed.contiguous() if self.contiguous else mixed)


def trained(case: Case) -> dict[str, torch.Tensor]:
    """Everything that one can see of it. Runs on one process as it is, and on workers of a stage."""
    torch.manual_seed(3)
    model = Model(case).to(case.dtype)
    x = torch.randn(case.batch, 3, *case.inner, dtype=case.dtype) * 2 + 1
    target = torch.randn(case.batch, 3, *case.inner, dtype=case.dtype)
    x.requires_grad_(case.input_needs_grad)
    seen = {}
    for step in range(case.steps):
        model.zero_grad()
        y = model(x * (step + 1))
        loss = ((y - target) ** 2).sum()
        if case.second:
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + gradient.norm()
        loss.backward()
        seen |= {f"output {step}": y.detach(), f"loss {step}": loss.detach()}
        seen |= {f"{name} {step}": p.grad.clone() for name, p in model.named_parameters()}
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
    if case.input_needs_grad:
        seen["input"] = x.grad
    seen |= {name: b.clone().double() for name, b in model.named_buffers()}
    model.eval()
    with torch.no_grad():
        seen["evaluated"] = model(x.detach())
    return seen


def trained_in_slices(group: Group, case: Case) -> dict[str, torch.Tensor]:
    with staged(group):
        return trained(case)


def check(pool: Any, world: int, case: Case) -> None:
    expected = trained(case)
    for found in pool(world).run(trained_in_slices, case):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name], value, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
            )


@pytest.mark.parametrize(
    ("dims", "inner"), [(1, ()), (1, (4,)), (2, (3, 2)), (3, (2, 2, 2))], ids=["1d", "1d of 3", "2d", "3d"]
)
@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
def test_every_batch_norm_sees_the_batch(pool: Any, world: int, dims: int, inner: tuple[int, ...]) -> None:
    check(pool, world, Case(batch=7, dims=dims, inner=inner, input_needs_grad=True))


@pytest.mark.parametrize("inner", [(2,), (7,), (8,), (2, 2), (1, 1), (5, 4)], ids=str)
def test_small_planes_sum_as_large_ones_do(pool: Any, inner: tuple[int, ...]) -> None:
    check(pool, 2, Case(batch=5, dims=len(inner), inner=inner, input_needs_grad=True, contiguous=True))


def test_small_planes_on_a_borrowed_row(pool: Any) -> None:
    check(pool, 3, Case(batch=2, dims=2, inner=(2, 2), input_needs_grad=True, contiguous=True))


@pytest.mark.parametrize("momentum", [None, 0.0, 0.3, 1.0])
def test_running_statistics(pool: Any, momentum: float | None) -> None:
    check(pool, 2, Case(momentum=momentum, steps=3))


def test_without_weights_of_its_own(pool: Any) -> None:
    check(pool, 2, Case(affine=False, input_needs_grad=True))


def test_without_running_statistics(pool: Any) -> None:
    check(pool, 2, Case(track=False))


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_fewer_samples_than_workers(pool: Any, batch: int) -> None:
    check(pool, 5, Case(batch=batch, input_needs_grad=True))


def test_gradients_of_gradients(pool: Any) -> None:
    check(pool, 3, Case(batch=5, input_needs_grad=True, second=True))


def test_half_precision(pool: Any) -> None:
    """Gradients are sums that nearly cancel out here: in half precision only rounding is left of them."""
    case = Case(dtype=torch.bfloat16, steps=1)
    expected = trained(case)
    for found in pool(2).run(trained_in_slices, case):
        for name in ("output 0", "norm.running_mean", "norm.running_var"):
            assert found[name].dtype is expected[name].dtype
            torch.testing.assert_close(found[name], expected[name], rtol=0.05, atol=0.05)


@given(
    world=st.sampled_from([1, 2, 3, 5]),
    case=st.builds(
        Case,
        batch=st.integers(2, 9),
        dims=st.just(2),
        inner=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        momentum=st.sampled_from([0.1, None]),
        affine=st.booleans(),
        input_needs_grad=st.booleans(),
    ),
)
def test_any_batch_on_any_number_of_workers(pool: Any, world: int, case: Case) -> None:
    check(pool, world, case)


class Odd(nn.Module):
    """Every other form in which torch has batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.lazy = nn.LazyBatchNorm2d()
        self.sync = nn.SyncBatchNorm(4)
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.sync(self.lazy(self.conv(x.contiguous(memory_format=torch.channels_last))))
        x = self.instance(F.batch_norm(x, self.mean, self.var, self.weight, training=True, momentum=0.3))
        return F.batch_norm(x, None, None, training=True) * F.batch_norm(x.detach(), self.mean, self.var)


def trained_odd(group: Group | None, dtype: torch.dtype, offset: float) -> dict[str, torch.Tensor]:
    with staged(group) if group is not None else nullcontext():
        torch.manual_seed(4)
        model, x = Odd().to(dtype), torch.randn(7, 3, 3, 2, dtype=dtype) + offset
        for _ in range(2):
            model.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
        return {"loss": loss.detach()} | {n: v.detach().clone().double() for n, v in model.state_dict().items()}


@pytest.mark.parametrize("world", [2, 3])
def test_other_forms_of_batch_norm(pool: Any, world: int) -> None:
    expected = trained_odd(None, torch.float64, 0.0)
    for found in pool(world).run(trained_odd, torch.float64, 0.0):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def variance_far_from_zero(group: Group) -> torch.Tensor:
    with staged(group):
        norm = nn.BatchNorm1d(2)
        norm(torch.randn(90, 2, generator=torch.Generator().manual_seed(1)) + 1000)
        return norm.running_var


def test_statistics_are_as_accurate_as_in_two_passes(pool: Any) -> None:
    """A sum of squares would lose all digits of the variance here: float32, mean 1000, variance 1."""
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(1)) + 1000
    expected = 0.9 + 0.1 * x.double().var(0)
    for found in pool(3).run(variance_far_from_zero):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def one_sample(group: Group) -> None:
    with staged(group):
        trained(Case(batch=1))


def test_a_single_value_per_channel_is_an_error_as_on_one_process(pool: Any) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        trained(Case(batch=1))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        pool(2).run(one_sample)


def statistics_of_slices(group: Group) -> tuple[torch.Tensor, list[str]]:
    with staged(group) as stage:
        catalog.load(catalog.parse(["bn=local"])[0]).on_stage(stage)
        norm = nn.BatchNorm1d(2).double()
        x = torch.arange(8, dtype=torch.float64).view(4, 2)
        return norm(x).detach(), stage.notices  # type: ignore[attr-defined]


def test_local_batch_norm_sees_its_slice_and_the_run_says_so(pool: Any) -> None:
    x = torch.arange(8, dtype=torch.float64).view(4, 2)
    expected = torch.cat([nn.BatchNorm1d(2).double()(x[:2]), nn.BatchNorm1d(2).double()(x[2:])]).detach()
    for found, notices in pool(2).run(statistics_of_slices):
        torch.testing.assert_close(found, expected)
        assert any("bn=local" in notice for notice in notices)
