"""A failure in one stage of a pipeline: the exception that plain Python raises, on all stages, and nobody waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.launch import launch
from paceline.settings import RunSettings
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelined.train_step import TrainStep

BAD = 50.0


class _Explode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        if x.abs().max() > BAD:
            raise ArithmeticError("no gradient for this row")
        return grad


class Fragile(nn.Module):
    """Raises for large numbers, in its forward or in its backward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.layer, self.where = nn.Linear(6, 6), where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "forward" and x.abs().max() > BAD:
            raise ArithmeticError("no output for this row")
        out: torch.Tensor = self.layer(x)
        return _Explode.apply(out) if self.where == "backward" else out


def build(where: str, stage: int, norm: bool) -> nn.Module:
    """Two linear layers, of which that of this stage is fragile."""
    torch.manual_seed(2)
    layers = [Fragile(where), nn.Linear(6, 6)] if stage == 0 else [nn.Linear(6, 6), Fragile(where)]
    return nn.Sequential(layers[0], nn.BatchNorm1d(6) if norm else nn.Identity(), layers[1]).double()


def train_on_a_bad_batch(where: str, stage: int, norm: bool, row: int, inside: Pipeline | None = None) -> list[Any]:
    """Catches the exception of the second batch, and trains on."""
    model = build(where, stage, norm)
    step = TrainStep(inside, model, nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told: list[Any] = []
    for number in range(4):
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        x = torch.randn(8, 6, dtype=torch.float64)
        if number == 1:
            x[row] *= 1e3
        optimizer.zero_grad()
        try:
            if inside is not None:
                loss = step(x, torch.zeros(8, 6, dtype=torch.float64))
            else:
                loss = nn.functional.mse_loss(model(x), torch.zeros_like(x))
                loss.backward()
        except ArithmeticError as error:
            told.append(str(error))
            model.load_state_dict(weights)
            continue
        optimizer.step()
        told.append(loss.item())
    return [*told, *(p.norm().item() for p in model.parameters())]


def fail(group: Group, stages: int, handed_over: bool, *args: Any) -> list[Any]:
    strategy = Pipeline(stages=stages, schedule="1f1b" if handed_over else "gpipe")
    with staged(group, strategy):
        return train_on_a_bad_batch(*args, strategy if handed_over else None)


def check(found: list[Any], expected: list[Any]) -> None:
    assert found[1] == expected[1]
    assert [found[0], *found[2:]] == pytest.approx([expected[0], *expected[2:]], rel=1e-9)


@pytest.mark.parametrize("handed_over", [False, True])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("stage", [0, 1])
def test_all_stages_raise_what_one_stage_raised(pool: Any, where: str, stage: int, handed_over: bool) -> None:
    expected = train_on_a_bad_batch(where, stage, False, 3)
    assert expected[1] == f"no {'output' if where == 'forward' else 'gradient'} for this row"
    for found in pool(2).run(fail, 2, handed_over, where, stage, False, 3):
        check(found, expected)


@pytest.mark.parametrize(("norm", "row"), [(False, 6), (True, 1)])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_all_replicas_raise_what_one_stage_raised(pool: Any, where: str, norm: bool, row: int) -> None:
    stage = 0 if norm else 1  # the other replica waits in the batch norm of this stage
    expected = train_on_a_bad_batch(where, stage, norm, row)
    assert isinstance(expected[1], str)
    for handed_over in (False, True):
        for found in pool(4).run(fail, 2, handed_over, where, stage, norm, row):
            check(found, expected)


SCRIPT = """
import torch
from torch import nn

class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        if x.abs().max() > 50:
            raise ArithmeticError("no output for row 7")
        return self.layer(x)

model = nn.Sequential(Picky(), nn.Tanh(), nn.Linear(6, 6))
for step in range(3):
    x = torch.randn(8, 6)
    if step == 2:
        x[7] = 1000
    model(x).sum().backward()
    print("step", step)
"""


def test_a_run_ends_with_the_exception_of_the_stage(zygote: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = RunSettings(script=str(script), workers=2, threads=1, strategy="pipeline(stages=2)")
    outcome = launch(run, zygote=zygote, record=tmp_path / "record", on_event=lambda event: None)
    assert outcome.exit_code == 1
    assert "ArithmeticError: no output for row 7" in (tmp_path / "record" / "log.rank1.txt").read_text()
    assert "ArithmeticError: no output for row 7" in outcome.message
