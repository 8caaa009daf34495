"""Pipeline: each worker keeps the parameters of its stage only, and the script sees whole ones. Float64, plain SGD."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_pipeline import compare, in_stages, staged
from torch import nn
from torch.utils import checkpoint as recomputed

from paceline.comm.group import Group
from paceline.errors import PartedError, ScriptError
from paceline.spread.stage_tensor import StageTensor

WIDTH = 48


def deep(layers: int = 4) -> nn.Module:
    torch.manual_seed(2)
    inner = (layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    return nn.Sequential(*inner).double()


def saved(thing: Any) -> Any:
    """What a script's own torch.save writes."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def live_weights() -> int:
    """Memories of the size of a weight that are alive: parameters, gradients, the optimizer's state."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    memories = [t.untyped_storage() for t in found if not isinstance(t, StageTensor) and t.layout is torch.strided]
    return len({memory.data_ptr() for memory in memories if memory.nbytes() == 8 * WIDTH * WIDTH})


def train_deep() -> tuple[int, Any]:
    before = live_weights()
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        loss = model(torch.randn(8, WIDTH, dtype=torch.float64)).square().mean()
        loss = loss + 1e-3 * sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return live_weights() - before, [saved(model.state_dict()), saved(optimizer.state_dict()["state"][2])]


@pytest.mark.parametrize(("workers", "stages"), [(2, 2), pytest.param(4, 2, marks=pytest.mark.slow), (4, 4)])
def test_a_worker_keeps_memory_for_its_own_stage_only(pool: Any, workers: int, stages: int) -> None:
    kept, expected = train_deep()
    assert kept == 12  # of four layers: weight, gradient, momentum
    for found, files in pool(workers).run(in_stages, {"stages": stages}, train_deep):
        assert found <= 12 // stages
        compare(files, expected)
        assert all(type(value) is torch.Tensor for one in files for value in one.values())


def looks_at_parameters() -> list[Any]:
    """What scripts do with parameters outside of the model."""
    model = deep(2)
    held = list(model.parameters())
    average = copy.deepcopy(model)
    x = torch.randn(6, WIDTH, dtype=torch.float64)
    optimizer = torch.optim.AdamW(held, lr=1e-2)
    seen: list[Any] = []
    for _ in range(3):
        optimizer.zero_grad()
        (model(x).square().mean() + 0.1 * held[0].abs().max() + held[2][1].sum() * held[1][0]).backward()
        seen += [float(nn.utils.clip_grad_norm_(held, 0.1)), held[0].grad[1, :3].tolist(), held[2].grad.numpy().sum()]
        optimizer.step()
        with torch.no_grad():
            for slow, new in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(new, alpha=0.1)
    twin = copy.deepcopy(model)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    nn.init.normal_(model[0].weight)
    model[2].weight.data[0] = 1.0
    model[0].bias.data = torch.full((WIDTH,), 0.5, dtype=torch.float64)
    seen += [repr(held[1]), f"{held[0].mean():.9f}", nn.utils.parameters_to_vector(held).sum().item()]
    seen += [model(x).sum().item(), twin(x).sum().item(), average(x).sum().item(), torch.rand(1).item()]
    seen += [pickle.loads(pickle.dumps(held[1])).tolist(), torch.equal(held[0], twin[0].weight)]
    model.load_state_dict(best)
    resumed = torch.optim.AdamW(held, lr=1e-2, foreach=True)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    resumed.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    resumed.step()
    moving = x.clone().requires_grad_()
    (moved,) = torch.autograd.grad(F.linear(model(moving), held[2]).sum(), moving)
    return [
        *seen,
        moved.sum().item(),
        *(p.sum().item() for p in held),
        held[0].dtype,
        isinstance(held[0], nn.Parameter),
    ]


def test_scripts_see_whole_parameters(pool: Any) -> None:
    expected = looks_at_parameters()
    for found in pool(2).run(in_stages, {}, looks_at_parameters):
        for a, b in zip(found, expected, strict=True):
            if isinstance(b, float | list):
                compare(a, b)
            else:
                assert a == b


class Borrowing(nn.Module):
    """Its forward uses a layer's weight in another stage than the layer; part of it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 13)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.linear(torch.tanh(self.frozen(torch.tanh(self.first(x)))), self.first.weight))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.leave = nn.Linear(6, 5), nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.inner(torch.tanh(self.enter(x)).unsqueeze(1).repeat(1, 3, 1))[0][:, -1])


class Thrifty(nn.Module):
    """Each layer is recomputed in backward, with the same dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 6 if n < 3 else 13)) for n in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = recomputed.checkpoint(layer, x, use_reentrant=False)
        return x


MODELS: dict[str, Callable[[], nn.Module]] = {"borrowing": Borrowing, "recurrent": Recurrent, "thrifty": Thrifty}


def train(name: str) -> list[Any]:
    torch.manual_seed(3)
    model = MODELS[name]().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    numbers: list[Any] = []
    for _ in range(3):
        x, y = torch.randn(9, 6, dtype=torch.float64), torch.randint(13, (9,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        numbers += [loss.item(), *(p.grad.norm().item() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return [*numbers, saved(model.state_dict())]


@pytest.mark.parametrize("name", MODELS)
def test_unusual_models_give_the_numbers_of_plain_python(pool: Any, name: str) -> None:
    expected = train(name)
    for found in pool(2).run(in_stages, {}, train, name):
        compare(found, expected)


def accumulated() -> list[Any]:
    """Gradients of two backwards are added up in each step, and looked at in between from time to time."""
    model = deep(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Any] = []
    for number in range(12):
        model(torch.randn(4, WIDTH, dtype=torch.float64)).square().mean().backward()
        if number % 3 == 0:
            seen.append([p.grad.norm().item() for p in model.parameters() if p.grad is not None])
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return [*seen, saved(model.state_dict())]


def test_accumulated_gradients_are_those_of_one_process(pool: Any) -> None:
    expected = accumulated()
    for found in pool(4).run(in_stages, {"stages": 2}, accumulated):
        compare(found, expected)


def trains_a_copy() -> list[Any]:
    model = deep(2)
    x = torch.randn(8, WIDTH, dtype=torch.float64)
    seen: list[Any] = []
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        model = copy.deepcopy(model)
    return [*seen, saved(model.state_dict())]


@pytest.mark.parametrize("workers", [2, 4])
def test_a_copy_of_a_model_in_stages_is_trained(pool: Any, workers: int) -> None:
    expected = trains_a_copy()
    for found in pool(workers).run(in_stages, {"stages": 2}, trains_a_copy):
        compare(found, expected)


def evaluates_first() -> list[Any]:
    model = deep(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, WIDTH, dtype=torch.float64)
    seen: list[Any] = []
    for _ in range(3):
        model.eval()
        with torch.inference_mode():
            seen += [model(x).sum().item(), model[0].weight.detach().sum().item()]
        model.train()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [*seen, saved(model.state_dict())]


def test_an_evaluation_in_inference_mode_comes_first(pool: Any) -> None:
    expected = evaluates_first()
    for found in pool(2).run(in_stages, {}, evaluates_first):
        compare(found, expected)


def differ(group: Group, how: str) -> str:
    model = deep(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with staged(group):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, WIDTH, dtype=torch.float64)).sum().backward()
                if how == "a gradient":
                    model[2].weight.grad += 0.1 * (os.getpid() % 1000)
                optimizer.step()
            if how == "a weight":
                model[2].weight.data = torch.full((WIDTH, WIDTH), float(os.getpid() % 1000), dtype=torch.float64)
    except PartedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", ["a gradient", "a weight"])
def test_workers_that_put_different_numbers_into_a_stage_are_found(pool: Any, how: str) -> None:
    for said in pool(2, how).run(differ, how):
        assert "Worker 1 writes other values into sharded weights" in said


def quantises() -> str:
    model = deep(2)
    model(torch.randn(6, WIDTH, dtype=torch.float64))
    try:
        torch.quantize_per_tensor(next(model.parameters()).float(), 0.1, 0, torch.qint8)
    except ScriptError as error:
        return error.message
    return ""


def test_what_other_stages_cannot_know_beforehand_is_refused(pool: Any) -> None:
    """Torch believes on the meta device that quantising gives a plain tensor."""
    told = pool(2).run(in_stages, {"stages": 2}, quantises)
    assert told == [
        "quantize_per_tensor of a stage's parameter returns a tensor of a kind that the other stages cannot "
        "know beforehand.",
        "",
    ]
