"""Scripts write through views of weights that a strategy has divided: the numbers are those of one process. Float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pool import Pools
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.strategies import catalog


def by_rows(w: Any) -> None:
    for row in w:
        row.div_(row.norm())


def by_array(w: Any) -> None:
    array = w.numpy()
    array[0] = 0.5
    array.T[1] *= 2


def two_views(w: Any) -> None:
    first, second = w[0], w[1]
    first.fill_(1)
    second.fill_(2)
    first.mul_(second[1].item())


WAYS: dict[str, Callable[[Any], Any]] = {
    "row": lambda w: w[0].fill_(1),
    "column": lambda w: w[:, 1:3].mul_(3),
    "element": lambda w: w[0, 0].zero_(),
    "transposed": lambda w: w.t().mul_(2),
    "T": lambda w: w.T.copy_(torch.ones(w.shape[1], w.shape[0])),
    "flat": lambda w: w.view(-1)[5].fill_(3),
    "diagonal": lambda w: w.diagonal().fill_(0),
    "rows": by_rows,
    "gradient": lambda w: w.grad[0].zero_(),
    "narrow": lambda w: w.narrow(0, 1, 2).zero_(),
    "unbind": lambda w: w.unbind(1)[2].zero_(),
    "chunk": lambda w: w.chunk(3)[1].zero_(),
    "split": lambda w: torch.split(w, [1, w.shape[0] - 1])[0].zero_(),
    "unflatten": lambda w: w.unflatten(0, (2, -1))[0].zero_(),
    "strided": lambda w: w.as_strided((2,), (1,)).zero_(),
    "real": lambda w: w.real[0].zero_(),
    "setitem": lambda w: w.__setitem__(1, 0.25),
    "numpy": by_array,
    "two views": two_views,
}


def made() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def writes() -> dict[str, list[float]]:
    model, seen = made(), dict[str, list[float]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 6, dtype=torch.float64)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    for name, write in WAYS.items():
        model.load_state_dict(start)
        step()
        for number in (0, 2):
            with torch.no_grad():
                write(model[number].weight.data if name != "gradient" else model[number].weight)
        optimizer.step()
        seen[name] = [*(p.sum().item() for p in model.parameters()), step()]
    return seen


def divided(group: Group, strategy: str, script: Callable[[], Any]) -> Any:
    with staged(group, strategy=catalog.load(strategy)):
        return script()


STRATEGIES = ("mesh(data=1,model=2)", "pipeline(stages=2)", "sharded")


@pytest.mark.parametrize("strategy", [*STRATEGIES, pytest.param("mesh(data=2,model=2)", marks=pytest.mark.slow)])
def test_what_is_written_through_a_view_is_kept(pool: Pools, strategy: str) -> None:
    torch.manual_seed(0)
    expected = writes()
    for found in pool(catalog.parse(strategy).workers or 2, strategy).run(divided, strategy, writes):
        for name, numbers in expected.items():
            assert found[name] == pytest.approx(numbers, rel=1e-9), name


def of_one_row() -> list[float]:
    """A weight of one row, which a mesh splits by columns; and gradients that are detached in place."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    seen = []
    for _ in range(2):
        model(x).square().mean().backward()
        with torch.no_grad():
            model[2].weight[0, 3:5].fill_(2.0)
            model[2].weight.grad.detach_()[0, :2].zero_()
        seen += [model(x).sum().item(), model[2].weight.sum().item(), model[2].weight.grad.sum().item()]
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_written_into_a_weight_of_one_row_is_kept(pool: Pools, strategy: str) -> None:
    for found in pool(2, strategy).run(divided, strategy, of_one_row):
        assert found == pytest.approx(of_one_row(), rel=1e-9)


def writes_late(kind: str) -> str:
    """A view that was made before an update, and written to after it."""
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6, dtype=torch.float64)
    weight: Any = model[2].weight
    view: Any = None
    try:
        for number in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if number == 0:
                view = weight.data.numpy() if kind == "array" else weight.data.T
        view[0] = 1.0
        model(x)
    except (ScriptError, ValueError) as error:
        return str(error)
    return ""


def late(group: Group, strategy: str, kind: str) -> str:
    with staged(group, strategy=catalog.load(strategy)):
        return writes_late(kind)


@pytest.mark.parametrize(
    ("strategy", "kind"), [("mesh(data=1,model=2)", "view"), ("mesh(data=1,model=2)", "array"), ("sharded", "array")]
)
def test_a_write_through_a_view_of_old_numbers_is_refused(pool: Pools, strategy: str, kind: str) -> None:
    """It would undo the updates since."""
    for said in pool(2, strategy).run(late, strategy, kind):
        assert "the tensor was changed after the view was made" in said or "read-only" in said
