"""LARS and LAMB against formulas in float64, on random tensors, and as optimizers of torch.optim."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference import Lamb, Lars
from torch import Tensor, nn

import paceline as pl
from paceline.errors import UsageError

SHAPES = st.sampled_from([(), (1,), (7,), (3, 5), (1, 4), (2, 3, 3, 3), (0,), (0, 4), (33, 17)])
KINDS = ("normal", "zero weights", "zero gradients", "no gradient", "tiny", "huge")
OPTIMIZERS = (pl.LAMB, pl.LARS)
F64 = torch.float64


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[np.ndarray], list[list[np.ndarray | None]]]:
    """Weights of some tensors, and gradients of some steps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = draw(st.lists(st.tuples(SHAPES, st.sampled_from(KINDS)), min_size=1, max_size=5))
    size = {"tiny": 1e-6, "huge": 1e4}
    weights = [rng.normal(size=shape) * (kind != "zero weights") for shape, kind in made]
    steps: list[list[np.ndarray | None]] = []
    for _ in range(draw(st.integers(1, 4))):
        grads = [rng.normal(size=shape) * size.get(kind, 1.0) * (kind != "zero gradients") for shape, kind in made]
        steps.append([None if kind == "no gradient" else g for g, (_, kind) in zip(grads, made, strict=True)])
    return weights, steps


def parameters(weights: list[np.ndarray], dtype: torch.dtype = F64) -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor(w, dtype=dtype)) for w in weights]


def give(tensors: list[nn.Parameter], grads: list[Any]) -> None:
    for tensor, grad in zip(tensors, grads, strict=True):
        tensor.grad = None if grad is None else torch.as_tensor(grad, dtype=tensor.dtype).clone()


def exempt(weights: list[np.ndarray], adapt: bool | None) -> list[bool]:
    return [w.ndim < 2 if adapt is None else not adapt for w in weights]


@given(
    problem=problems(),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0)]),
    decay=st.sampled_from([0.0, 0.01, 0.5]),
    adapt=st.sampled_from([None, True]),
    capturable=st.booleans(),
    tensor_lr=st.booleans(),
    maximize=st.booleans(),
)
def test_lamb_is_its_formula(
    problem: Any, betas: Any, decay: float, adapt: Any, capturable: bool, tensor_lr: bool, maximize: bool
) -> None:
    weights, steps = problem
    mine, reference = parameters(weights), Lamb(weights, exempt(weights, adapt))
    lr: Any = torch.tensor(0.02, dtype=F64) if tensor_lr else 0.02
    how = {"adapt": adapt, "capturable": capturable, "maximize": maximize}
    optimizer = pl.LAMB(mine, lr, betas, 1e-6, decay, **how)
    for grads in steps:
        give(mine, [g if g is None or not maximize else -g for g in grads])
        optimizer.step()
        reference.step(grads, lr=0.02, betas=betas, eps=1e-6, decay=decay)
    for w, expected in zip(mine, reference.weights, strict=True):
        # Corrections that never leave the device are kept in float32.
        np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-5 if capturable else 1e-11, atol=1e-12)


@given(
    problem=problems(),
    momentum=st.sampled_from([0.0, 0.9]),
    nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 0.01]),
    adapt=st.sampled_from([None, True]),
    maximize=st.booleans(),
)
def test_lars_is_its_formula(
    problem: Any, momentum: float, nesterov: bool, decay: float, adapt: Any, maximize: bool
) -> None:
    weights, steps = problem
    nesterov = nesterov and momentum > 0
    mine, reference = parameters(weights), Lars(weights, exempt(weights, adapt))
    optimizer = pl.LARS(mine, 0.5, momentum, decay, nesterov=nesterov, adapt=adapt, maximize=maximize)
    settings = {"lr": 0.5, "momentum": momentum, "decay": decay, "trust": 0.001, "eps": 1e-8, "nesterov": nesterov}
    for grads in steps:
        give(mine, [g if g is None or not maximize else -g for g in grads])
        optimizer.step()
        reference.step(grads, **settings)
    for w, expected in zip(mine, reference.weights, strict=True):
        np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_round_as_their_digits_allow(kind: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exact = [nn.Parameter(torch.randn(9, 5, dtype=dtype).double()), nn.Parameter(torch.randn(9, dtype=dtype).double())]
    rounded = [nn.Parameter(p.detach().to(dtype)) for p in exact]
    pair = kind(exact, lr=0.1), kind(rounded, lr=0.1)
    for _ in range(5):
        grads = [torch.randn_like(p, dtype=dtype) for p in rounded]
        give(rounded, grads)
        give(exact, grads)
        for optimizer in pair:
            optimizer.step()
    for p, q in zip(exact, rounded, strict=True):
        assert q.dtype == dtype
        torch.testing.assert_close(q.double(), p.detach(), rtol=0, atol=torch.finfo(dtype).eps * 8)


def test_a_complex_weight_is_two_real_ones() -> None:
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
    apart = nn.Parameter(torch.view_as_real(whole.detach()).clone())
    grad = torch.randn(4, 3, dtype=torch.complex128)
    for parameter, g in ((whole, grad), (apart, torch.view_as_real(grad))):
        parameter.grad = g.clone()
        pl.LAMB([parameter]).step()
    torch.testing.assert_close(torch.view_as_real(whole.detach()), apart.detach())


# -- as optimizers of torch.optim --------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


def train(model: nn.Module, optimizer: Any, steps: range) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        x, y = torch.randn(16, 6), torch.randint(3, (16,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made(kind: Any, **settings: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(7)
    model = Net()
    return model, kind(pl.no_decay(model), lr=0.05, weight_decay=0.01, **settings)


@pytest.mark.crossed("capturable")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("capturable", [False, True])
def test_a_run_that_is_resumed_goes_on_exactly(kind: Any, capturable: bool) -> None:
    model, optimizer = made(kind, capturable=capturable)
    train(model, optimizer, range(5))
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
    expected = train(model, optimizer, range(5, 12))
    again, other = made(kind, capturable=capturable)
    train(again, other, range(3))  # a state of its own, which loading replaces
    kept.seek(0)
    saved = torch.load(kept)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    assert train(again, other, range(5, 12)) == expected
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_copied_optimizer_goes_on_alike(kind: Any) -> None:
    model, optimizer = made(kind)
    train(model, optimizer, range(3))
    other_model, other = copy.deepcopy((model, optimizer))
    assert train(other_model, other, range(3, 6)) == train(model, optimizer, range(3, 6))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_groups_have_settings_of_their_own(kind: Any) -> None:
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 3))
    still = b.detach().clone()
    optimizer = kind([{"params": [a]}, {"params": [b], "lr": 0.0}], lr=0.1)
    optimizer.add_param_group({"params": []})
    give([a, b], [torch.ones(3, 3)] * 2)
    optimizer.step()
    assert torch.equal(b, still)
    assert optimizer.param_groups[1]["lr"] == 0.0


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_closure_is_called_with_gradients_on(kind: Any) -> None:
    w = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([w], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert not torch.equal(w, torch.ones(2, 2))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_gradient_scaler_unscales_and_skips(kind: Any) -> None:
    plain_model, plain = made(kind)
    model, optimizer = made(kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        torch.manual_seed(step)
        x, y = torch.randn(16, 6), torch.randint(3, (16,))
        for net, steps in ((plain_model, plain), (model, optimizer)):
            steps.zero_grad()
            loss = F.cross_entropy(net(x), y)
            (scaler.scale(loss) if steps is optimizer else loss).backward()
        if step == 2:
            next(iter(model.parameters())).grad.view(-1)[0] = float("inf")  # type: ignore[union-attr]
        else:
            plain.step()
        scaler.step(optimizer)
        scaler.update()
    for p, q in zip(plain_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q, p)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_sparse_gradient_is_refused_in_plain_words(kind: Any) -> None:
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UsageError, match="sparse gradient") as caught:
        kind(table.parameters()).step()
    assert "sparse=False" in caught.value.advice


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_fused_form_is_refused_where_it_cannot_be(kind: Any) -> None:
    with pytest.raises(UsageError, match="fused=True"):
        kind([nn.Parameter(torch.ones(2, dtype=torch.float64))], fused=True)


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (pl.LAMB, {"lr": -1.0}, "lr=-1.0 is out of range"),
        (pl.LAMB, {"betas": (0.9, 1.0)}, "β2=1.0 is out of range"),
        (pl.LAMB, {"eps": -1e-6}, "eps=-1e-06 is out of range"),
        (pl.LAMB, {"lr": torch.ones(2)}, "lr has 2 numbers"),
        (pl.LARS, {"momentum": 1.0}, "momentum=1.0 is out of range"),
        (pl.LARS, {"trust": -0.1}, "trust=-0.1 is out of range"),
        (pl.LARS, {"weight_decay": float("nan")}, "weight_decay=nan is out of range"),
        (pl.LARS, {"momentum": 0.0, "nesterov": True}, "nesterov=True needs momentum"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(kind: Any, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        kind([nn.Parameter(torch.ones(2))], **wrong)


def test_lars_without_adaptation_is_torchs_sgd() -> None:
    torch.manual_seed(0)
    a, b = nn.Parameter(torch.randn(4, 4, dtype=F64)), nn.Parameter(torch.randn(4, 4, dtype=F64))
    b.data.copy_(a.data)
    pair = (
        pl.LARS([a], 0.1, 0.9, 0.01, nesterov=True, adapt=False),
        torch.optim.SGD([b], 0.1, 0.9, weight_decay=0.01, nesterov=True),
    )
    for _ in range(4):
        give([a, b], [torch.randn(4, 4, dtype=F64)] * 2)
        for optimizer in pair:
            optimizer.step()
    torch.testing.assert_close(a, b)


def test_groups_without_decay_hold_biases_and_norms() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 2, 2])  # whose weight has three dimensions
            self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)  # whose bias_k has three as well
            self.scale, self.tied = nn.Parameter(torch.ones(())), nn.Linear(4, 4)
            self.also = self.tied

    model = Odd()
    weights, others = pl.no_decay(model)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in weights["params"]} == {
        "conv.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "tied.weight",
    }
    assert len(weights["params"]) + len(others["params"]) == len(names)
    assert (others["weight_decay"], others["adapt"], weights["adapt"]) == (0.0, False, True)
    assert len(pl.no_decay(nn.Linear(2, 2, bias=False))) == 1
    torch.optim.AdamW(pl.no_decay(model))
