"""Sharpness against losses whose Hessian is known."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline.converge.sharpness.hessian import (
    hessian_vector,
    largest_eigenvalue,
    loss_along_line,
    mean_loss,
    perturbed_loss,
)

F64 = torch.float64


@given(
    values=st.lists(st.floats(-10, 10), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_the_largest_eigenvalue_of_a_quadratic(values: list[float], seed: int) -> None:
    torch.manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(len(values), len(values), dtype=F64))[0]
    hessian = turn @ torch.diag(torch.tensor(values, dtype=F64)) @ turn.T
    a, b = nn.Parameter(torch.randn(1, dtype=F64)), nn.Parameter(torch.randn(len(values) - 1, dtype=F64))

    def loss_of(batch: Tensor) -> Tensor:
        w = torch.cat([a, b])
        return 0.5 * w @ hessian @ w + batch.mean() * w.sum()

    found = largest_eigenvalue(loss_of, [torch.ones(3)], [a, b], iterations=3000, tolerance=1e-7)
    size = max(map(abs, values))
    assert found.eigenvalue == pytest.approx(max(values), abs=0.02 * size + 1e-6)


def test_a_saddle_is_not_taken_for_its_steepest_way_down() -> None:
    w = nn.Parameter(torch.tensor([1.0, 1.0], dtype=F64))
    found = largest_eigenvalue(lambda _: -5 * w[0] ** 2 + w[1] ** 2, [torch.ones(1)], [w], tolerance=1e-9)
    assert found.eigenvalue == pytest.approx(2.0, rel=1e-3)
    assert found.settled


def test_two_eigenvalues_of_one_size_and_both_signs() -> None:
    w = nn.Parameter(torch.ones(3, dtype=F64))
    found = largest_eigenvalue(lambda _: 5 * w[0] ** 2 - 5 * w[1] ** 2 + w[2] ** 2, [torch.ones(1)], [w])
    assert found.eigenvalue == pytest.approx(10.0, rel=0.01)


def net() -> tuple[nn.Module, list[Any], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(10, 4, dtype=F64), torch.randint(3, (10,))
    batches = [(x[:7], y[:7]), (x[7:], y[7:])]
    return model, batches, lambda batch: F.cross_entropy(model(batch[0]), batch[1])


def full_hessian(model: nn.Module, batches: list[Any]) -> np.ndarray:
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        values = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        x, y = (torch.cat([batch[i] for batch in batches]) for i in (0, 1))
        return F.cross_entropy(torch.func.functional_call(model, values, x), y)

    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.autograd.functional.hessian(loss, start).numpy()


def test_products_and_eigenvalue_of_a_net_over_uneven_batches() -> None:
    model, batches, loss_of = net()
    hessian = full_hessian(model, batches)
    weights = list(model.parameters())
    vector = [torch.randn_like(w) for w in weights]
    found = torch.cat([h.flatten() for h in hessian_vector(loss_of, batches, weights, vector)])
    expected = hessian @ torch.cat([v.flatten() for v in vector]).numpy()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    top = largest_eigenvalue(loss_of, batches, weights, tolerance=1e-6, iterations=500)
    assert top.settled
    assert top.eigenvalue == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-3)


def test_a_flat_loss_has_no_curvature() -> None:
    w = nn.Parameter(torch.ones(3))
    assert largest_eigenvalue(lambda batch: (w * batch.mean()).sum(), [torch.ones(2)], [w]).eigenvalue == 0.0


def test_a_sharper_bowl_loses_more_under_a_perturbation() -> None:
    w = nn.Parameter(torch.full((4, 4), 3.0, dtype=F64))
    flat = perturbed_loss(lambda batch: (w - 3).square().sum(), [torch.ones(1)], [w], radius=0.05)
    sharp = perturbed_loss(lambda batch: 10 * (w - 3).square().sum(), [torch.ones(1)], [w], radius=0.05)
    # On a sphere about the minimum the loss is the same everywhere: (radius · |w|)².
    assert flat.mean == pytest.approx((0.05 * 12) ** 2)
    assert flat.spread == pytest.approx(0.0, abs=1e-12)
    assert sharp.mean == pytest.approx(10 * flat.mean)
    assert (flat.loss, sharp.worst >= sharp.mean) == (0.0, True)
    assert torch.equal(w, torch.full((4, 4), 3.0, dtype=F64))


def test_weights_are_put_back_also_after_a_failure() -> None:
    w = nn.Parameter(torch.ones(3))
    calls = []

    def loss_of(batch: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("broken")
        return w.sum()

    with pytest.raises(RuntimeError, match="broken"):
        perturbed_loss(loss_of, [torch.ones(1)], [w])
    assert torch.equal(w, torch.ones(3))


def test_the_line_between_two_solutions() -> None:
    model, batches, _ = net()
    model = nn.Sequential(model, nn.BatchNorm1d(3).double()).eval()
    start = copy.deepcopy(model.state_dict())
    end = {name: value + 1 for name, value in start.items()}
    before = copy.deepcopy(model.state_dict())

    def loss_of(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    found = loss_along_line(model, loss_of, batches, start, end, [0.0, 0.25, 1.0])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert found[0] == pytest.approx(mean_loss(loss_of, batches))
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(0.75 * start[name] + 0.25 * end[name])
    assert found[1] == pytest.approx(mean_loss(loss_of, batches))


def test_the_scripts_random_stream_is_left_alone() -> None:
    model, batches, loss_of = net()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    largest_eigenvalue(loss_of, batches, model.parameters(), iterations=2)
    perturbed_loss(loss_of, batches, model.parameters(), directions=2)
    assert torch.equal(torch.rand(3), expected)


def test_time_is_kept() -> None:
    """One iteration is made in any case."""
    model, batches, loss_of = net()
    found = largest_eigenvalue(loss_of, batches, model.parameters(), seconds=0.0)
    assert (found.iterations, found.settled) == (1, False) or found.eigenvalue < 0
