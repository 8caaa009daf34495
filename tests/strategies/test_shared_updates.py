"""ZeRO-1 and central storage: the update of a parameter is made by its owner, and every worker sees the result."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from staged import lone_group, staged
from torch import nn
from torch.nn import functional as F

from paceline.comm.group import Group
from paceline.converge.optimizers.lars import LARS
from paceline.errors import PartedError
from paceline.strategies import catalog
from paceline.strategies.owned_state import Owners, parameters_of, size_of

STRATEGIES = ("zero1", "central")
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "lars": lambda groups: LARS(groups, lr=0.1, momentum=0.9),
    "lbfgs": lambda groups: torch.optim.LBFGS(groups[0]["params"] + groups[1]["params"], max_iter=3),
    "own": lambda groups: Signs(groups, {"lr": 0.01}),
}


class Kept:
    """Holds the optimizers that a script makes."""

    def __init__(self) -> None:
        self.optimizers: list[Any] = []

    def on_optimizer(self, optimizer: Any) -> None:
        self.optimizers.append(optimizer)

    def size(self) -> int:
        return sum(map(size_of, self.optimizers))


class Signs(torch.optim.Optimizer):
    """A script's own optimizer, whose update depends on all gradients together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        total = sum(p.grad.sum() for p in parameters_of(self) if p.grad is not None)
        for parameter in (p for p in parameters_of(self) if p.grad is not None):
            parameter -= self.param_groups[0]["lr"] * torch.sign(parameter.grad) * (1 + total)


def model() -> nn.Module:
    torch.manual_seed(0)
    # No bias in front of batch norm: its gradient is rounding, which an update by signs would show.
    layers = [
        nn.Linear(5, 7, bias=False),
        nn.BatchNorm1d(7),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(7, 7),
        nn.Linear(7, 3),
    ]
    return nn.Sequential(*layers).double()


def train(name: str) -> list[float]:
    """Everything that a script may print: losses, norms, states, weights. The script changes weights by hand, makes a
    scheduler, saves and loads, freezes a parameter, and adds one later."""
    net = model()
    optimizer = OPTIMIZERS[name]([{"params": [*net[0].parameters()]}, {"params": [*net[1:].parameters()]}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randint(0, 3, (12,))
    scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
    printed: list[float] = []

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x) * scale, y)
        loss.backward()
        printed.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0).item())
        return loss

    for step in range(5):
        net[4].bias.requires_grad_(step != 1)
        if name == "lbfgs":
            printed.append(optimizer.step(backward).item())
        else:
            printed.append(backward().item())
            optimizer.step()
            printed.append(net[0].weight.grad.sum().item())  # of another worker's parameter, too
        scheduler.step()
        with torch.no_grad():
            net[5].weight.data.clamp_(-0.3, 0.3)
        if step == 2 and name != "lbfgs":
            state = optimizer.state_dict()
            entries = [state["state"][number] for number in sorted(state["state"])]
            printed += [float(value.sum()) for entry in entries for value in entry.values() if value is not None]
            optimizer.add_param_group({"params": [scale]})
        if name == "adamw":
            printed += [optimizer.state[p]["exp_avg"].sum().item() for p in net.parameters() if p in optimizer.state]
            if step == 1:
                del optimizer.state[net[5].weight]
                optimizer.state[net[5].bias]["exp_avg"].zero_()
            printed += sorted(entry["step"].item() for entry in copy.deepcopy(optimizer).state.values())
        if step == 3 and name not in ("lbfgs", "own"):
            optimizer.load_state_dict(optimizer.state_dict())
    return [*printed, *(parameter.sum().item() for parameter in (*net.parameters(), scale))]


def on_workers(group: Group, strategy: str, name: str) -> tuple[list[float], list[str], int]:
    with staged(group, catalog.load(strategy), listeners=(kept := Kept(),)) as stage:
        return train(name), stage.notices, kept.size()


@pytest.mark.crossed("world")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", [2, 3])
def test_the_numbers_are_those_of_one_process(pool, world: int, strategy: str, name: str) -> None:
    torch.manual_seed(0)
    expected = train(name)
    for printed, _, _ in pool(world).run(on_workers, strategy, name):
        assert printed == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_state_is_kept_once(pool, strategy: str) -> None:
    with staged(lone_group(), listeners=(alone := Kept(),)):
        train("adamw")
    whole = alone.size()
    kept = pool(2).run(on_workers, strategy, "adamw")
    assert sum(size for *_, size in kept) == whole
    assert max(size for *_, size in kept) < 0.75 * whole
    assert any("the state of AdamW" in notice for notice in kept[0][1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_unknown_optimizer_stays_whole_and_that_is_said(pool, strategy: str) -> None:
    for _, notices, _ in pool(2).run(on_workers, strategy, "own"):
        assert any("Signs is not known to update each parameter by itself" in notice for notice in notices)


def test_central_storage_works_alone() -> None:
    torch.manual_seed(0)
    expected = train("adamw")
    with staged(lone_group(), catalog.load("central")):
        assert train("adamw") == pytest.approx(expected, rel=1e-12)


def failing(group: Group, strategy: str) -> str:
    """A step that fails on one worker fails on all, and the next one works."""
    with staged(group, catalog.load(strategy)):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, said = torch.randn(12, 5, dtype=torch.float64), ""
        net(x).sum().backward()
        mine = optimizer.param_groups[0]
        mine["lr"] = "fast" if group.rank == 1 else 0.1
        try:
            optimizer.step()
        except Exception as error:
            said = type(error).__name__
        mine["lr"] = 0.1
        optimizer.step()
        return said


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_that_fails_on_one_worker_fails_on_all(pool, strategy: str) -> None:
    said = pool(2).run(failing, strategy)
    assert said[0] == said[1] != ""


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 5))
def test_owners_share_evenly_and_stay(sizes: list[int], world: int) -> None:
    parameters = [torch.empty(size) for size in sizes]
    owners = Owners(world)
    owners.learn(parameters[: len(sizes) // 2])
    before = [owners[parameter] for parameter in parameters[: len(sizes) // 2]]
    owners.learn(parameters)
    assert before == [owners[parameter] for parameter in parameters[: len(sizes) // 2]]
    assert max(owners.bytes) - min(owners.bytes) <= 4 * max(sizes)
    assert sum(owners.bytes) == 4 * sum(sizes)


def differing(group: Group, what: str) -> str:
    """A script whose second update depends on the process."""
    with staged(group, catalog.load("zero1")) as stage:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(12, 5, dtype=torch.float64)
        for step in range(2):
            optimizer.zero_grad()
            net(x).sum().backward()
            if step and what == "rate":
                optimizer.param_groups[0]["lr"] = 0.1 + group.rank
            if step and what == "gradient":
                net[0].weight.grad[0, 0] += group.rank
            if step and what == "rounding":
                net[0].weight.grad *= 1 + 1e-13 * group.rank
            if step and what == "number" and group.rank:
                net[0].weight.grad = None
            try:
                optimizer.step()
            except PartedError as error:
                return error.message
        return " ".join(stage.notices)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("rate", "lr of parameter group 0 is 0.1 on worker 0 and 1.1 on worker 1"),
        ("gradient", "the norm of the gradient of parameter 0 (shape (7, 5)) is"),
        ("number", "parameters with a gradient: 7 on worker 0, 6 on worker 1"),
        ("rounding", "differ by rounding before an update"),
    ],
)
def test_updates_that_differ_between_workers_are_refused(pool, what: str, said: str) -> None:
    for heard in pool(2).run(differing, what):
        assert said in heard
