"""Functions of torch on weights that a strategy has divided: the numbers are those of one process. Float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from test_views_of_weights import STRATEGIES, divided, made
from torch import nn

from paceline.script.rows.elementwise import ONE, SEVERAL


def lists() -> dict[str, list[float]]:
    """Functions of lists, in which plain tensors (averages of the weights) stand beside weights."""
    model, seen = made(), dict[str, list[float]]()
    model(torch.randn(8, 6, dtype=torch.float64)).square().mean().backward()
    weights, short = list(model.parameters()), [p.detach().bfloat16() for p in model.parameters()]
    averages = [torch.ones(p.shape, dtype=p.dtype) for p in weights]
    with torch.no_grad():
        torch._foreach_lerp_(averages, weights, 0.25)
        seen["into plain tensors"] = [one.sum().item() for one in averages]
        torch._foreach_add_(weights, averages, alpha=0.5)
        seen["into weights"] = [p.sum().item() for p in weights]
        seen["products"] = [p.sum().item() for p in torch._foreach_mul(averages, weights)]
        seen["powers"] = [p.sum().item() for p in torch._foreach_pow(2.0, weights)]
        seen["norms"] = [n.item() for n in torch._foreach_norm([*weights, *averages])]
        seen["largest"] = [n.item() for n in torch._foreach_max(weights)]
        seen["short norms"] = [n.item() for n in (*torch._foreach_norm(short), *(one.norm() for one in short))]
    seen["gradients"] = [one.sum().item() for one in torch.autograd.grad(slopes(weights), weights)]
    return seen


def slopes(weights: list[Any]) -> Any:
    return torch.stack([one.sum() for one in torch._foreach_mul(weights, weights)]).sum()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_functions_of_lists_are_those_of_one_process(pool: Pools, strategy: str) -> None:
    torch.manual_seed(0)
    expected = lists()
    for found in pool(2, strategy).run(divided, strategy, lists):
        for name, numbers in expected.items():
            assert found[name] == pytest.approx(numbers, rel=1e-9), name


def calls() -> Iterator[tuple[str, Callable[..., Any], int]]:
    """Each function that treats every element by itself, with one tensor, with a number and with another tensor.
    Further arguments of functions in `F` may say that they work in place."""
    for name in f"{ONE} {SEVERAL}".split():
        for owner in (torch.Tensor, torch, F):
            if callable(f := getattr(owner, name, None)) and name not in ("cuda", "type"):
                yield from ((f"{owner.__name__}.{name}", f, given) for given in range(1 if owner is F else 4))


def numbers_of(found: torch.Tensor, parameter: Any) -> list[Any]:
    slope = torch.autograd.grad(found.sum(), parameter)[0].sum().item() if found.requires_grad else 0.0
    return [str(found.dtype), tuple(found.shape), found.double().nan_to_num(0.5, 9, -9).sum().item(), slope]


def each() -> dict[str, Any]:
    model, seen = made(), dict[str, Any]()
    model(torch.randn(8, 6, dtype=torch.float64)).square().mean().backward()
    for parameter in model[0].parameters():
        other = parameter.detach() * 2 - 0.1
        for name, f, given in calls():
            try:
                found = f(parameter, *[(), (0.5,), (other,), (other, 0.25)][given])
                told = numbers_of(found, parameter) if isinstance(found, torch.Tensor) else str(type(found))
            except Exception as error:
                told = type(error).__name__
            seen[f"{name} {given} {parameter.dim()}"] = told
    return seen


@pytest.mark.parametrize("strategy", ["mesh(data=1,model=2)", "sharded"])
def test_functions_of_elements_are_those_of_one_process(pool: Pools, strategy: str) -> None:
    torch.manual_seed(0)
    expected = each()
    for found in pool(2, strategy).run(divided, strategy, each):
        wrong = {name: (found[name], of_one) for name, of_one in expected.items() if not is_same(found[name], of_one)}
        assert not wrong


def is_same(found: Any, expected: Any) -> bool:
    if not isinstance(expected, list) or not isinstance(found, list):
        return bool(found == expected)
    return found[:2] == expected[:2] and found[2:] == pytest.approx(expected[2:], rel=1e-9, abs=1e-12, nan_ok=True)


ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Hardtanh,
    nn.Mish,
    nn.Hardswish,
    nn.Softplus,
    nn.GELU,
)


def activated() -> dict[str, list[float]]:
    """Activations between two layers, in place where they can be."""
    seen = {}
    for kind in ACTIVATIONS:
        for place in (False, True)[: 2 if "inplace" in getattr(kind, "__constants__", ()) else 1]:
            torch.manual_seed(1)
            activation = kind(inplace=True) if place else kind()
            model = nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 2), nn.Softmax(-1)).double()
            model(torch.randn(6, 4, dtype=torch.float64)).square().sum().backward()
            seen[f"{kind.__name__} {place}"] = [p.grad.square().sum().item() for p in model.parameters()]
    return seen


@pytest.mark.parametrize("strategy", ["mesh(data=1,model=2)", "sharded"])
def test_activations_are_those_of_one_process(pool: Pools, strategy: str) -> None:
    expected = activated()
    assert "ReLU True" in expected
    for found in pool(2, strategy).run(divided, strategy, activated):
        for name, numbers in expected.items():
            assert found[name] == pytest.approx(numbers, rel=1e-9), name
