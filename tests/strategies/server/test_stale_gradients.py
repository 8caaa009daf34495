"""Stale gradients: what each correction computes, against the formulas, and what becomes of a worker's momentum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from server_team import Team, team

from paceline.strategies.server import shard_file
from paceline.strategies.server.exchange import Exchange
from paceline.strategies.server.optimizers import OptimizerSpec
from paceline.strategies.server.partition import TensorSpec, split
from paceline.strategies.server.shard import Shard
from paceline.strategies.server.stale.correction import FRESH, LARGEST, MEMORY, STEADY, Correction, Kind, Plan

SGD = "torch.optim.SGD"
HEAVY = [{"momentum": 0.9, "dampening": 0.0}]
LR, MOMENTUM, DECAY = 0.1, 0.9, 0.01


def joined(it: Team, ranks: int, **options: Any) -> list[Exchange]:
    """A worker each, in this process: the test says who pushes when."""
    found = []
    for rank in range(ranks):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((5, 7), (40,))]
        optimizer = torch.optim.SGD(parameters, **{"lr": LR, "momentum": MOMENTUM, **options})
        found.append(Exchange(it.client(rank), 0, optimizer, correction="momentum"))
    return found


def push(exchange: Exchange, number: int, size: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    for parameter in exchange.given:
        parameter.grad = size * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    given = [parameter.grad.clone() for parameter in exchange.given if parameter.grad is not None]
    exchange.step()
    return given


class Formula:
    """DANA, written down once more: w -= lr (m v + g), v = m v + g, with a v for each worker."""

    def __init__(self, values: list[torch.Tensor]) -> None:
        self.w = [value.detach().clone() for value in values]
        self.v: dict[int, list[torch.Tensor]] = {}
        self.seen: dict[int, int] = {}
        self.version, self.updates, self.staleness, self.norm = 0, 0, 0.0, 0.0

    def push(self, worker: int, gradients: list[torch.Tensor]) -> None:
        staleness = self.version - self.seen.get(worker, 0)
        self.updates += 1
        weight = max(MEMORY, 1 / self.updates)
        self.staleness = (1 - weight) * self.staleness + weight * staleness
        scale = min(1.0, max(1.0, self.staleness) / max(1, staleness)) ** FRESH
        norm = scale * math.sqrt(sum(float((g * g).sum()) for g in gradients))
        most = LARGEST * (self.norm or norm)
        self.norm = (1 - weight) * self.norm + weight * min(norm, most)
        scale *= min(1.0, most / norm)
        old = self.v.get(worker, [torch.zeros_like(w) for w in self.w])
        moved = [scale * g + DECAY * w for g, w in zip(gradients, self.w, strict=True)]
        lr = LR * min(1, STEADY / max(1, self.staleness))
        self.v[worker] = [MOMENTUM * v + g for v, g in zip(old, moved, strict=True)]
        self.w = [w - lr * (MOMENTUM * v + g) for w, v, g in zip(self.w, self.v[worker], moved, strict=True)]
        self.version += 1
        self.seen[worker] = self.version

    def mean(self) -> list[torch.Tensor]:
        return [sum(each) / len(self.v) for each in zip(*self.v.values(), strict=True)]  # type: ignore[misc]


@pytest.mark.parametrize("servers", [1, 2])
def test_each_worker_has_a_momentum_of_its_own(tmp_path: Path, servers: int) -> None:
    """Also one that is far behind, one gradient that is much too large, and a tensor that is cut."""
    with team(tmp_path, workers=3, servers=servers, correction="momentum") as it:
        exchanges = joined(it, 3, weight_decay=DECAY)
        formula = Formula(exchanges[0].given)
        for number, worker in enumerate([0, 1, 0, 1, 0, 1, 0, 2, 1, 0, 2, 2, 0]):
            formula.push(worker, push(exchanges[worker], number, size=50.0 if number == 5 else 1.0))
            for found, expected in zip(exchanges[worker].given, formula.w, strict=True):
                torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-14)
        assert exchanges[2].staleness == 0
        state = exchanges[0].state()
        for number, expected in enumerate(formula.mean()):
            torch.testing.assert_close(state[number]["momentum_buffer"], expected, rtol=1e-12, atol=1e-14)
        for exchange in exchanges:
            exchange.client.close()
    assert max(it.reports()[0].staleness) == 7


def test_the_momentum_of_a_worker_ends_with_it_and_a_new_one_begins_without(tmp_path: Path) -> None:
    with team(tmp_path, workers=2, correction="momentum") as it:
        first, second = joined(it, 2, weight_decay=DECAY)
        formula = Formula(first.given)
        for number, (worker, exchange) in enumerate([(0, first), (1, second)] * 2):
            formula.push(worker, push(exchange, number))
        second.client.close()
        del formula.v[1]
        (late,) = joined(it, 1, weight_decay=DECAY)
        formula.seen[2] = formula.version  # a new worker gets the newest parameters
        for number, (worker, exchange) in enumerate([(2, late), (0, first), (2, late)], 10):
            formula.push(worker, push(exchange, number))
        for found, expected in zip(late.given, formula.w, strict=True):
            torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-14)
        state = first.state()
        for number, expected in enumerate(formula.mean()):
            torch.testing.assert_close(state[number]["momentum_buffer"], expected, rtol=1e-12, atol=1e-14)
        first.client.close()
        late.client.close()


def test_a_loaded_momentum_is_that_of_every_worker(tmp_path: Path) -> None:
    with team(tmp_path, workers=2, correction="momentum") as it:
        first, second = joined(it, 2, weight_decay=DECAY)
        formula = Formula(first.given)
        loaded = [torch.full_like(w, 0.5) for w in formula.w]
        for tensor, buffer in zip(first.given, loaded, strict=True):
            first.optimizer.state[tensor] = {"momentum_buffer": buffer.clone()}
        first.load(force=True)
        formula.v = {0: loaded, 1: loaded}
        for number, (worker, exchange) in enumerate([(1, second), (0, first)]):
            formula.push(worker, push(exchange, number))
        for found, expected in zip(first.given, formula.w, strict=True):
            torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-14)
        for exchange in (first, second):
            exchange.client.close()


def test_a_server_that_starts_again_gives_every_worker_the_mean_momentum(tmp_path: Path) -> None:
    """A file has one momentum buffer. The workers that the server knew begin with it, a new worker begins without."""
    tensors = (TensorSpec("w", "float64", (40,)),)
    (share,) = split(tensors, 1).shares
    options = torch.optim.SGD([torch.zeros(1)], lr=LR, momentum=MOMENTUM).defaults
    options = {name: options[name] for name in ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")}
    shard = Shard(tensors, share, OptimizerSpec(SGD, ((0,),), (options,)))
    gradients = [torch.full((40,), value, dtype=torch.float64) for value in (1.0, 3.0)]
    for worker, gradient in enumerate(gradients):
        shard.apply([gradient], frozenset(), [options], own=worker)
    draft = shard_file.Draft()
    draft.add(0, shard, {}, {0: 1, 1: 1})
    draft.write(tmp_path / "shard", shard_file.Contents(0, 2, {}, tuple(draft.spaces)))
    _, (again,) = shard_file.read(tmp_path / "shard")
    nothing = torch.zeros(40, dtype=torch.float64)
    for worker, momentum in ((0, 2.0), (1, 2.0), (7, 0.0)):
        before = again.parameters[0].detach().clone()
        again.apply([nothing], frozenset(), [options], own=worker)
        expected = before - LR * MOMENTUM * (MOMENTUM * momentum)
        torch.testing.assert_close(again.parameters[0].detach(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "optimizer", "options", "plan"),
    [
        ("none", SGD, HEAVY, Plan()),
        ("rate", SGD, HEAVY, Plan(rate=0.25)),
        ("momentum", SGD, HEAVY, Plan(rate=STEADY / 4, own=True)),
        ("momentum", SGD, [{"momentum": 0.0, "dampening": 0.0}], Plan(rate=0.25)),
        ("momentum", SGD, [{"momentum": 0.9, "dampening": 0.1}], Plan(rate=0.25)),
        ("momentum", "torch.optim.AdamW", [{}], Plan(rate=0.25)),
    ],
)
def test_which_correction_an_optimizer_gets(
    kind: Kind, optimizer: str, options: list[dict[str, Any]], plan: Plan
) -> None:
    assert Correction(kind, optimizer).plan(options, 4, 1.0) == plan


def test_a_gradient_that_is_not_finite_does_not_spoil_the_mean_norm() -> None:
    correction = Correction("momentum", SGD)
    assert correction.plan(HEAVY, 0, 1.0).scale == 1.0
    for norm in (math.inf, math.nan):
        assert correction.plan(HEAVY, 0, norm).scale == 1.0
    assert correction.plan(HEAVY, 0, 8.0).scale == pytest.approx(LARGEST / 8)
