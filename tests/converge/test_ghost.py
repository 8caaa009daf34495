"""Ghost batch norm against a loop over chunks, and as a module in the place of torch's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import paceline as pl
from paceline.errors import UsageError

F64 = torch.float64
KINDS: dict[int, Any] = {2: pl.GhostBatchNorm1d, 3: pl.GhostBatchNorm1d, 4: pl.GhostBatchNorm2d, 5: pl.GhostBatchNorm3d}


def chunks(x: Tensor, size: int) -> list[Tensor]:
    """The ghosts: a last sample that has no variance joins the ghost before."""
    found = list(x.split(size))
    if len(found) > 1 and found[-1].numel() == found[-1].shape[1]:
        found[-2:] = [torch.cat(found[-2:])]
    return found


def naive(x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int, eps: float = 1e-5) -> Tensor:
    return torch.cat([F.batch_norm(c, None, None, weight, bias, True, 0.0, eps) for c in chunks(x, size)])


@given(
    batch=st.integers(2, 13),
    size=st.integers(1, 15),
    channels=st.integers(1, 5),
    pixels=st.sampled_from([(), (4,), (2, 3), (1, 1), (2, 1, 2)]),
    affine=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_is_a_loop_over_chunks(
    batch: int, size: int, channels: int, pixels: tuple[int, ...], affine: bool, last: bool, seed: int
) -> None:
    values = 1
    for pixel in pixels:
        values *= pixel
    if values == 1:
        size = max(size, 2)
    torch.manual_seed(seed)
    x = torch.randn(batch, channels, *pixels, dtype=F64) * 3 + 10
    if last and x.dim() in (4, 5):
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    norm = KINDS[x.dim()](channels, size, affine=affine).double()
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x.requires_grad_()
    y, expected = norm(x), naive(x, norm.weight, norm.bias, size)
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous() == x.is_contiguous()
    wanted = [x, *norm.parameters()]
    up = torch.randn_like(y)
    for mine, its in zip(torch.autograd.grad(y, wanted, up), torch.autograd.grad(expected, wanted, up), strict=True):
        torch.testing.assert_close(mine, its)
    mean, variance = x.detach().transpose(0, 1).flatten(1).mean(1), x.detach().transpose(0, 1).flatten(1).var(1)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * variance)


@pytest.mark.parametrize("shape", [(7, 2), (7, 2, 3), (5, 2, 2, 2)])
def test_gradients_and_gradients_of_gradients_are_right(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    norm = KINDS[len(shape)](2, 3, track_running_stats=False).double()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(
            lambda x, w, b: torch.func.functional_call(norm, {"weight": w, "bias": b}, x), (x, norm.weight, norm.bias)
        )


def test_one_ghost_is_batch_norm_also_in_its_buffers() -> None:
    torch.manual_seed(0)
    mine, its = pl.GhostBatchNorm2d(3, 100), nn.BatchNorm2d(3)
    for _ in range(4):
        x = torch.randn(6, 3, 4, 4)
        torch.testing.assert_close(mine(x), its(x))
    for key, value in its.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], value)
    mine.eval()
    its.eval()
    torch.testing.assert_close(mine(x), its(x))


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_are_the_whole_batchs(momentum: float | None) -> None:
    torch.manual_seed(0)
    mine, its = pl.GhostBatchNorm1d(3, 4, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    for batch in (16, 10, 4, 21):
        x = torch.randn(batch, 3) + torch.arange(batch).view(-1, 1)
        mine(x)
        its(x)
    for key, value in its.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], value)


def test_a_large_mean_costs_no_digits() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 2, 4, 4, dtype=F64) + 3000
    y = pl.GhostBatchNorm2d(2, 16)(x.float())
    torch.testing.assert_close(y.double(), naive(x.float().double(), None, None, 16), rtol=0, atol=2e-3)


def test_half_types_are_normalised_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), pl.GhostBatchNorm2d(4, 4))
    x = torch.randn(8, 3, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        inside = model[0](x)
        y = model[1](inside)
    assert y.dtype == inside.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), naive(inside.float(), None, None, 4), rtol=0.01, atol=0.01)
    y.float().square().sum().backward()
    assert model[1].weight.grad.dtype == torch.float32


def test_the_model_keeps_its_modules_parameters_and_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(5), nn.BatchNorm1d(5))
    x = torch.randn(6, 3, 5, 5)
    model(x)
    before = copy.deepcopy(model.state_dict())
    norm, parameters = model[1], list(model.parameters())
    assert pl.ghost(model, 2) is model
    assert model[1] is norm
    assert [type(model[i]) for i in (1, 4)] == [pl.GhostBatchNorm2d, pl.GhostBatchNorm1d]
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key])
    assert "size=2" in repr(model)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(x), model(x))
    assert pl.ghost(model, 3)[1].size == 3


def test_workers_that_do_not_synchronise_are_one_with_ghosts() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    whole = pl.ghost(copy.deepcopy(plain), 5)
    x, y = torch.randn(15, 3, dtype=F64), torch.randint(2, (15,))
    F.cross_entropy(whole(x), y).backward()
    for rows in range(0, 15, 5):
        (F.cross_entropy(plain(x[rows : rows + 5]), y[rows : rows + 5]) / 3).backward()
    for p, q in zip(plain.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize(("batch", "backend"), [pytest.param(12, "aot_eager", marks=pytest.mark.slow), (10, "eager")])
def test_it_compiles_as_one_graph(batch: int, backend: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), pl.GhostBatchNorm2d(4, 4), nn.ReLU()).double()
    other = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = torch.randn(batch, 3, 4, 4, dtype=F64)
    for _ in range(2):
        mine, its = compiled(x), other(x)
        torch.testing.assert_close(mine, its)
        mine.sum().backward()
        its.sum().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    for key, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value)


def test_bad_input_is_told() -> None:
    with pytest.raises(UsageError, match=r"no nn\.BatchNorm1d"):
        pl.ghost(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    with pytest.raises(UsageError, match="only SyncBatchNorm"):
        pl.ghost(nn.Sequential(nn.SyncBatchNorm(2)))
    for size in (0, -3, 2.5, True):
        with pytest.raises(UsageError, match="ghost of"):
            pl.GhostBatchNorm1d(3, size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 1 value"):
        pl.GhostBatchNorm1d(3)(torch.randn(1, 3))
    with pytest.raises(ValueError, match="4D"):
        pl.GhostBatchNorm2d(3)(torch.randn(4, 3))
    assert pl.GhostBatchNorm2d(3)(torch.empty(0, 3, 2, 2)).shape == (0, 3, 2, 2)
