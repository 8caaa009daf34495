"""Pipeline: numbers that stages compute (norms, penalties) are sent together. Float64, plain SGD."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from test_pipeline import compare, in_stages, staged
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from paceline.comm.group import Group
from paceline.errors import ScriptError

LAYERS, WIDTH = 6, 8


def deep() -> nn.Sequential:
    torch.manual_seed(2)
    inner = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    return nn.Sequential(*inner).double()


def messages(group: Group) -> dict[str, int]:
    """The messages that a worker waits for: in clipping, with a penalty, with a norm by hand; of twelve parameters."""
    counts: dict[str, int] = {}

    def count(name: str) -> None:
        counts[name] = group.pulse.collectives - sum(counts.values())

    with staged(group):
        model = deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(4, WIDTH, dtype=torch.float64)
        model(x).sum().backward()
        optimizer.step()
        count("first step")
        penalty = torch.zeros((), dtype=torch.float64)
        for parameter in model.parameters():
            penalty = penalty + 0.5 * parameter.pow(2).sum() + parameter.abs().sum()
        penalty.item()
        count("penalty")
        total = sum(p.grad.norm() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
        assert 0 < total < 1e3
        count("norm")
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        count("clip")
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        count("clip, foreach")
    return counts


def test_numbers_of_all_parameters_are_one_message(pool: Any) -> None:
    """With a message for each number: 24, 12, 12 and 12."""
    for counts in pool(2, "numbers").run(messages):
        del counts["first step"]
        assert counts == {"penalty": 1, "norm": 1, "clip": 1, "clip, foreach": 1}


class Scaled(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.scale: Any = 1.0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.scale * torch.full((WIDTH,), index + 1.0, dtype=torch.float64)


def uses_numbers() -> list[Any]:
    """What scripts do with a norm or a penalty before, between and after other things."""
    model = deep()
    weight: Any = model[0].weight
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.5)
    data, seen, factor = Scaled(), list[Any](), torch.tensor(2.0, dtype=torch.float64)
    for _ in range(3):
        for batch in DataLoader(data, batch_size=2):
            norms = [p.norm() for p in parameters]
            penalty = sum(n**2 for n in norms)
            shown = factor * penalty.detach()
            factor.mul_(0.9)  # after a number was computed with it
            loss = model(batch).square().mean() + 1e-3 * penalty
            optimizer.zero_grad()
            loss.backward()
            seen += [loss.item(), shown.item(), float(nn.utils.clip_grad_norm_(parameters, 1.0))]
            optimizer.step()
        data.scale = 1 / weight.detach().norm()
    last = weight.detach().square().sum()
    other = last.clone()
    last += parameters[-1].detach().sum()
    last.mul_(3)
    seen += [last.item(), other.item(), (last > other).item(), f"{last:.6f}", str(penalty)[:12], repr(other)]
    seen += [(last.detach() + 1).tolist(), last.numpy().tolist(), torch.stack([last, other]).sum().item()]
    seen += [
        copy.deepcopy(other).item(),
        pickle.loads(pickle.dumps(other)).item(),
        torch.tensor([other, last]).sum().item(),
    ]
    slopes = torch.autograd.grad(sum(p.square().sum() for p in parameters) * other, parameters)
    seen += [slope.sum().item() for slope in slopes]
    file = io.BytesIO()
    torch.save({"norm": parameters[0].detach().norm(), **model.state_dict()}, file)
    file.seek(0)
    return [*seen, torch.load(file, weights_only=True)]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_numbers_are_those_of_one_process(pool: Any, workers: int) -> None:
    *expected, files = uses_numbers()
    for *found, saved in pool(workers, "numbers").run(in_stages, {"stages": 2}, uses_numbers):
        for one, other in zip(found, expected, strict=True):
            if isinstance(other, float):
                compare(one, other)
            else:
                assert one == other
        compare(saved, files)


def writes_elements() -> list[Any]:
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, seen = torch.ones(4, WIDTH, dtype=torch.float64), list[Any]()
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        for layer in (0, 2 * LAYERS - 2):
            weight: Any = model[layer].weight
            with torch.no_grad():
                weight[0, 0] = 0.25
                weight.data[1, 1].fill_(0.5)
                weight.detach()[2, 2].mul_(0)
                weight.grad[0][3] += 2.0
            seen += [weight[0, 0].item(), weight.sum().item(), weight.grad.sum().item()]
    return [*seen, {name: value.clone() for name, value in model.state_dict().items()}]


def test_single_elements_of_a_parameter_can_be_changed(pool: Any) -> None:
    *expected, weights = writes_elements()
    for *found, last in pool(2, "numbers").run(in_stages, {}, writes_elements):
        compare(found, expected)
        compare({key: value.detach() * 1 for key, value in last.items()}, weights)


def read(numbers: list[torch.Tensor], into: list[float]) -> None:
    into += map(float, numbers)


def looked_at_by_one(group: Group) -> list[float]:
    """A tracker reads numbers on rank 0 only, at once or on a thread of its own."""
    with staged(group):
        model = deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, seen = torch.ones(4, WIDTH, dtype=torch.float64), list[float]()
        for step in range(4):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
            if group.rank == 0 and step % 2:
                seen += [norm.item() for norm in norms]
            elif group.rank == 0:
                thread = threading.Thread(target=read, args=(norms, seen))
                thread.start()
                thread.join()
            optimizer.step()
            weights = [p.detach().norm() for p in model.parameters()]
            if group.rank == 0:
                seen += map(float, weights)
    return seen


def test_a_worker_may_look_at_numbers_alone(pool: Any) -> None:
    found, _ = pool(2, "numbers").run(looked_at_by_one)
    assert len(found) == 4 * 2 * 2 * LAYERS


class Shrinks(nn.Module):
    """Its forward changes a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.first.weight.mul_(0.5)
        result: torch.Tensor = self.last(self.first(x))
        return result


def refused(group: Group, how: str) -> str:
    try:
        with staged(group):
            x, model = torch.ones(4, WIDTH, dtype=torch.float64), deep()
            model(x).sum().backward()  # the first model runs in stages; others may be computed whole
            if how == "weights":
                Shrinks().double()(x)
            else:
                checkpoint(deep(), x, use_reentrant=False)
    except ScriptError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("weights", "its forward changes the parameter first.weight"),
        ("checkpoint", "torch.utils.checkpoint around a call"),
    ],
)
def test_models_that_do_not_go_through_a_pipeline_are_refused(pool: Any, how: str, said: str) -> None:
    """The proof has changed the weights of the first; torch would fail in the second."""
    for found in pool(2, "numbers").run(refused, how):
        assert said in found


def initialises() -> list[Any]:
    """In the middle of training; orthogonal_ transposes a tensor of its own in place."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 5)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, seen = torch.ones(4, 4, dtype=torch.float64), list[Any]()
    for step in range(3):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        if step == 0:
            nn.init.orthogonal_(model[0].weight)
            nn.init.orthogonal_(model[2].weight)
            nn.init.kaiming_uniform_(model[4].weight)
        seen.append(loss.item())
    return seen


def test_weights_are_initialised_again(pool: Any) -> None:
    expected = initialises()
    for found in pool(2, "numbers").run(in_stages, {}, initialises):
        compare(found, expected)
