"""Mesh: workers that put different numbers into weights are found, also where each keeps its own part."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from pool import Pools
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.errors import PacelineError, PartedError
from paceline.strategies import catalog

WIDTH = 8


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)).double()


def hand_in(how: str, other: int, model: nn.Sequential, optimizer: Any) -> None:
    """Puts numbers of this worker into a weight, between two steps."""
    weight: Any = model[0].weight
    noise = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(other))
    with torch.no_grad():
        if how == "copy_":
            weight.copy_(noise)
        elif how == "add_":
            weight.add_(noise, alpha=1e-3)
        elif how == "number":
            weight.mul_(1 + 1e-3 * other)
        elif how == "init":
            nn.init.normal_(weight, generator=torch.Generator().manual_seed(other))
        elif how == "item":
            weight[1, 1] = float(noise[0, 0])
        elif how == "foreach":
            torch._foreach_add_([weight, model[3].weight], [noise, torch.zeros(WIDTH, dtype=torch.float64)])
        elif how == "whole":
            model[3].weight.add_(noise[0])
    if how == "data":
        weight.data = noise
    elif how == "grad":
        weight.grad = noise
        optimizer.step()
    elif how == "load":
        model.load_state_dict(model.state_dict() | {"0.weight": noise})
    elif how == "optimizer":
        state = optimizer.state_dict()
        state["state"][0]["momentum_buffer"] = noise
        optimizer.load_state_dict(state)
        optimizer.step()
    elif how == "gradients":
        loss = (1 + 1e-3 * other) * model(torch.ones(4, WIDTH, dtype=torch.float64)).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter -= 0.1 * grad


def loss_of(how: str, other: int, model: nn.Sequential) -> torch.Tensor:
    loss = (model(torch.ones(4, WIDTH, dtype=torch.float64)) * torch.arange(WIDTH)).sum()
    return loss * (1 + 1e-3 * other) if how == "loss" else loss


def differ(group: Group, strategy: str, how: str, by: str) -> tuple[str, str]:
    """What was said, and when: in the step after the difference, or at the end."""
    other = {"worker": group.rank, "axis": group.rank % 2, "nobody": 0}[by]
    when = "before"
    try:
        with staged(group, strategy=catalog.load(strategy)) as stage:
            model = made()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(3):
                when = "before" if step == 0 else "in the next step"
                loss = loss_of(how, other if step else 0, model)
                optimizer.zero_grad()
                loss.backward()
                if how == "hook" and step == 1:
                    handle = model[0].weight.register_hook(lambda grad: grad * (1 + 1e-3 * other))
                    loss_of(how, other, model).backward()
                    handle.remove()
                optimizer.step()
                if step == 0:
                    hand_in(how, other, model, optimizer)
            when = "at the end"
            if how == "late":
                with torch.no_grad():
                    model[0].weight[0, 0] = float(other)
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            stage.end()
    except PartedError as error:
        return str(error), when
    return "", ""


WAYS = ("copy_", "add_", "number", "init", "item", "foreach", "data", "grad", "load", "optimizer", "gradients")
SAID = "Worker 1 writes other values into sharded weights or gradients than worker 0, at "


@pytest.mark.parametrize("how", [*WAYS, "loss", "hook"])
def test_different_numbers_in_a_split_weight_are_found_before_they_are_used(pool: Pools, how: str) -> None:
    for said, when in pool(2, "mesh").run(differ, "mesh(data=1,model=2)", how, "worker"):
        assert SAID in said
        assert when == ("before" if how in ("grad", "optimizer") else "in the next step")


def test_different_numbers_in_the_last_update_are_found(pool: Pools) -> None:
    for said, when in pool(2, "mesh").run(differ, "mesh(data=1,model=2)", "late", "worker"):
        assert SAID in said
        assert when == "at the end"


@pytest.mark.parametrize("how", ["copy_", "whole"])
@pytest.mark.parametrize("by", ["worker", "axis"])
def test_different_numbers_are_found_along_both_axes(pool: Pools, how: str, by: str) -> None:
    """Also numbers that are equal along the axis data, and a weight that is not split."""
    for said, _ in pool(4, "mesh").run(differ, "mesh(data=2,model=2)", how, by):
        assert "writes other values into sharded weights" in said or "The workers' weights differ" in said


def end_early(group: Group, first: int) -> str:
    """Worker `first` makes one step less than the others."""
    try:
        with staged(group, strategy=catalog.load("mesh(data=2,model=2)")) as stage:
            model = made()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2 if group.rank == first else 3):
                loss_of("", 0, model).backward()
                optimizer.step()
            stage.end()
    except PacelineError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("first", [0, 3])
def test_a_worker_that_comes_to_the_end_early_does_not_wait_for_its_axis_alone(pool: Pools, first: int) -> None:
    for said in pool(4, f"end-{first}").run(end_early, first):
        assert "different collectives" in said
        assert "the end of the script" in said


@pytest.mark.parametrize(
    ("strategy", "ways"),
    [
        ("mesh(data=1,model=2)", (*WAYS, "loss", "hook", "late", "whole")),
        ("mesh(data=2,model=2)", ("copy_", "late", "whole")),
        pytest.param("mesh(data=2,model=2)", (*WAYS, "loss", "hook"), marks=pytest.mark.slow),
    ],
)
def test_equal_numbers_are_not_refused(pool: Pools, strategy: str, ways: tuple[str, ...]) -> None:
    workers = catalog.parse(strategy).workers
    assert workers is not None
    for how in ways:
        assert pool(workers, "mesh").run(differ, strategy, how, "nobody") == [("", "")] * workers
