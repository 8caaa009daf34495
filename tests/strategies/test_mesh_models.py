"""Mesh: fused layers that are taken apart in many ways, and models that a dataset calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from test_mesh import check, on_mesh, saved, train
from torch import nn
from torch.utils import checkpoint as recomputed
from torch.utils.data import DataLoader, Dataset

from paceline.comm.group import Group


def accumulated() -> Any:
    """Gradients of two backwards are added up in each step, and looked at in between from time to time. From the third
    step on, workers send them once a step."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).double()  # the last bias stays whole
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Any] = []
    for number in range(16):
        x = torch.randn(4, 6, dtype=torch.float64)
        model(x).square().mean().backward()
        if number % 3 == 0:
            seen.append([p.grad.norm().item() for p in model.parameters() if p.grad is not None])
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return [*seen, saved(model.state_dict())]


def test_accumulated_gradients_are_those_of_one_process_on_two_axes(pool: Pools) -> None:
    check(pool, "mesh(data=2,model=2)", accumulated)


@pytest.mark.parametrize("apart", ["chunk", "split", "unflatten", "whole"])
def test_a_fused_layer_is_taken_apart_in_many_ways(pool: Pools, apart: str) -> None:
    check(pool, "mesh(data=1,model=2)", taken_apart, apart)


class Apart(nn.Module):
    def __init__(self, apart: str) -> None:
        super().__init__()
        self.qkv, self.out, self.apart = nn.Linear(8, 24), nn.Linear(8, 2), apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.qkv(x)
        q, k, v = {
            "chunk": lambda: y.chunk(3, -1),
            "split": lambda: y.split(8, dim=2),
            "unflatten": lambda: y.unflatten(-1, (3, 4, 2)).flatten(-2).unbind(-2),
            "whole": lambda: (y[..., :8], y[..., 8:16], y[..., 16:] + y.mean()),
        }[self.apart]()
        return self.out(q * k.sigmoid() + v)


def taken_apart(apart: str) -> Any:
    torch.manual_seed(1)
    return train(Apart(apart).double(), torch.randn(12, 3, 8, dtype=torch.float64), torch.randint(0, 2, (12, 3)))


def test_a_dataset_may_call_a_split_model_if_every_worker_does(pool: Pools) -> None:
    check(pool, "mesh(data=1,model=2)", samples_of_a_model, True)


def test_a_dataset_that_is_found_to_call_a_split_model_too_late_is_refused(pool: Pools) -> None:
    for found in pool(2, "mesh").run(refused_samples):
        assert "A dataset uses a model whose parts are on several workers" in found


class Mapped(Dataset[torch.Tensor]):
    """`made` has what makes a sample, where only a call finds it."""

    def __init__(self, made: Any) -> None:
        self.made, self.rows = made, torch.arange(48, dtype=torch.float64).view(8, 6).sin()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.rows[index] + next(iter(self.made))(self.rows[index : index + 1])[0].sum()


def samples_of_a_model(called: bool) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), list[Any]()
    if called:
        model(torch.zeros(2, 6, dtype=torch.float64))
    for rows in DataLoader(Mapped({model}), 4):
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += [rows.sum().item(), loss.item()]
    return [seen, saved(model.state_dict())]


def refused_samples(group: Group) -> str:
    try:
        on_mesh(group, "mesh(data=1,model=2)", samples_of_a_model, False)
    except BaseException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("inside", [True, False])
def test_checkpointed_activations(pool: Pools, inside: bool) -> None:
    check(pool, "mesh(data=1,model=2)", checkpointed, inside)


class Checkpointed(nn.Module):
    """Recomputes its layers in backward, and the loss too if it is `inside`."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.word, self.up, self.down = nn.Embedding(8, 4), nn.Linear(4, 12), nn.Linear(12, 4)
        self.head, self.inside = nn.Linear(4, 8), inside

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = recomputed.checkpoint(
            lambda x: self.down(self.up(x).tanh()), self.word(ids), use_reentrant=False
        )
        if self.inside:
            return recomputed.checkpoint(lambda x: F.cross_entropy(self.head(x), targets), x, use_reentrant=False)
        return F.cross_entropy(self.head(x), targets)


def checkpointed(inside: bool) -> Any:
    torch.manual_seed(1)
    model = Checkpointed(inside).double()
    optimizer, ids, seen = torch.optim.SGD(model.parameters(), lr=0.1), torch.arange(8), list[float]()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(ids, ids.flip(0))
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [seen, saved(model.state_dict())]


def replaced() -> Any:
    """Parameters that the script makes of split ones, in the middle of training."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x, seen = torch.randn(10, 6, dtype=torch.float64), list[Any]()
    for step in range(6):
        if step == 2:
            weight = model[2].weight
            model[2].weight = nn.Parameter(weight.detach() * (weight.abs() > 0.05))
            model[0].bias = nn.Parameter(model[0].bias.detach().clone())
        if step == 4:
            model[0].weight = nn.Parameter(model[0].weight)
        if step % 2 == 0:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        seen.append([loss.item(), *(p.grad.norm().item() for p in model.parameters() if p.grad is not None)])
    return [*seen, saved(model.state_dict())]


def parametrized() -> Any:
    """A parametrization with buffers that change with each use, and an optimizer that computes in half precision."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    nn.utils.parametrizations.spectral_norm(model[0])
    matrices = [p for p in model.parameters() if p.dim() == 2]
    optimizer, x, seen = torch.optim.Muon(matrices, lr=0.05), torch.randn(10, 6, dtype=torch.float64), list[Any]()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [*seen, saved(model.state_dict())]


def test_nothing_is_computed_to_name_the_dimensions(pool: Pools) -> None:
    check(pool, "mesh(data=1,model=2)", parametrized)


@pytest.mark.parametrize("strategy", ["mesh(data=1,model=2)", "mesh(data=2,model=2)"])
def test_parameters_made_of_split_ones(pool: Pools, strategy: str) -> None:
    check(pool, strategy, replaced)


class Held:
    """What a model remembers between its calls."""

    def __init__(self) -> None:
        self.keys: Any = None


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, held: Held) -> dict[str, Any]:
        keys = self.first(x)
        held.keys = keys if held.keys is None else held.keys + keys
        return {"y": self.last(held.keys), "held": held}


def fills_an_object() -> Any:
    torch.manual_seed(1)
    model, held, seen = Remembers().double(), Held(), list[Any]()
    with torch.no_grad():
        for _ in range(3):
            out = model(torch.randn(8, 6, dtype=torch.float64), held)
            seen.append([out["held"] is held, out["y"].sum().item(), held.keys.sum().item()])
    return seen


def test_an_object_that_a_call_fills_and_returns_is_the_scripts_own(pool: Pools) -> None:
    check(pool, "mesh(data=2,model=2)", fills_an_object)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 2 + grad.mean(1, keepdim=True))
        result: torch.Tensor = self.last(torch.tanh(h))
        return result


def hooked() -> Any:
    torch.manual_seed(1)
    return train(Hooked().double(), torch.randn(12, 6, dtype=torch.float64), torch.randint(0, 2, (12,)))


@pytest.mark.parametrize("strategy", ["mesh(data=1,model=2)", "mesh(data=2,model=2)"])
def test_hooks_on_split_activations(pool: Pools, strategy: str) -> None:
    check(pool, strategy, hooked)
