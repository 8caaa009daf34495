"""What is written of each step: its time in phases that add up, its samples, its loss; and when it is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from staged import lone_group, staged
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.comm.group import Group
from paceline.record import read_steps
from paceline.record.phases import PHASES
from paceline.record.schema import Step
from paceline.record.writer import StepWriter
from paceline.script.recorder import EnoughSteps, Recorder
from paceline.script.seams.stage import Stage

Script = Callable[[], None]


def recorded(group: Group, folder: Path, script: Script, **run: Any) -> list[Step]:
    """The steps that a script leaves in its record."""
    with staged(group, **run) as stage:
        recorder = Recorder(stage, StepWriter(folder / f"steps.rank{group.rank}.jsonl"))
        try:
            script()
        except EnoughSteps:
            recorder.on_end()
        else:
            end(stage)
    return read_steps(folder, group.rank)


def end(stage: Stage) -> None:
    stage.end()


def alone(tmp_path: Path, script: Script, **run: Any) -> list[Step]:
    return recorded(lone_group(), tmp_path, script, **run)


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    model = nn.Linear(2, 1)
    data = TensorDataset(torch.ones(10, 2), torch.ones(10, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4)


def with_a_loader() -> None:
    model, optimizer, loader = parts()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def without_a_loader() -> None:
    model, optimizer, _ = parts()
    x = torch.ones(12, 2)
    for i in range(0, 12, 6):
        optimizer.zero_grad()
        model(x[i : i + 6]).sum().backward()
        optimizer.step()


def accumulated() -> None:
    model, optimizer, loader = parts()
    for i, (x, y) in enumerate([*loader, *loader]):
        nn.functional.mse_loss(model(x), y).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


def accumulated_from_a_loader() -> None:
    model, optimizer, loader = parts()
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            nn.functional.mse_loss(model(x), y).backward()
            if i == 2:
                optimizer.step()
                optimizer.zero_grad()


def without_an_optimizer() -> None:
    model, _ = nn.Linear(2, 1), None
    for _ in range(3):
        model(torch.ones(5, 2)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None


def adversarial() -> None:
    """Two models, two optimizers, two backwards a step: samples are counted once."""
    one, other = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, other)]
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4):
        for optimizer in optimizers:
            optimizer.zero_grad()
            other(one(x)).mean().backward()
            optimizer.step()


def folds() -> None:
    """Two models of each fold, one after the other; the optimizers of the fold before live on."""
    kept = []
    for _ in range(2):
        one, other = nn.Linear(2, 2), nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, other)]
        kept.append(optimizers)
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4):
            for optimizer in optimizers:
                other(one(x)).mean().backward()
                optimizer.step()


def inner_loops() -> None:
    """An optimizer for each task, made anew, and an outer one: from the second task on a step is the outer one's."""
    model = nn.Linear(2, 1)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.ones(12, 2)), batch_size=4):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        for optimizer in (inner, inner, outer):
            model(x).mean().backward()
            optimizer.step()


def evaluated_between() -> None:
    model, optimizer, loader = parts()
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            for x_, _ in DataLoader(TensorDataset(torch.ones(7, 2), torch.ones(7)), batch_size=3):
                model(x_)
        model.train()


def with_a_closure() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4):

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize(
    ("script", "samples"),
    [
        (with_a_loader, [4, 4, 2]),
        (without_a_loader, [6, 6]),
        (accumulated_from_a_loader, [10, 10]),
        (without_an_optimizer, [5, 5, 5]),
        (adversarial, [4, 4]),
        (evaluated_between, [4, 4, 2]),
        (with_a_closure, [4, 4]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [1, 2])
def test_samples_are_of_the_global_batch(
    pool: Any, tmp_path: Path, script: Script, samples: list[int], world: int
) -> None:
    for steps in pool(world).run(recorded, tmp_path, script):
        assert [step.samples for step in steps] == samples
        assert [step.step for step in steps] == list(range(1, len(samples) + 1))


def in_slices(group: Group, folder: Path, script: Script) -> list[Step]:
    return recorded(group, folder, script, sliced=True)


@pytest.mark.parametrize(("script", "count"), [(folds, 4), (inner_loops, 6)], ids=["folds", "inner loops"])
def test_an_optimizer_that_is_made_later_takes_over(tmp_path: Path, script: Script, count: int) -> None:
    assert len(alone(tmp_path, script)) == count


@pytest.mark.parametrize("script", [with_a_loader, accumulated_from_a_loader], ids=lambda s: s.__name__)
def test_in_the_slice_view_samples_are_still_of_the_global_batch(pool: Any, tmp_path: Path, script: Script) -> None:
    expected = [step.samples for step in alone(tmp_path, script)]
    for steps in pool(2).run(in_slices, tmp_path / "record", script):
        assert [step.samples for step in steps] == expected


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()


@pytest.mark.parametrize(
    "script",
    [
        with_a_loader,
        without_a_loader,
        accumulated,
        without_an_optimizer,
        adversarial,
        evaluated_between,
        with_a_closure,
    ],
    ids=lambda script: script.__name__,
)
def test_the_phases_of_a_step_add_up_to_its_total(tmp_path: Path, script: Script) -> None:
    for step in alone(tmp_path, script):
        assert sum(getattr(step, phase) for phase in PHASES) == pytest.approx(step.total, abs=1e-9)
        assert all(getattr(step, phase) >= 0 for phase in PHASES)
        assert step.forward > 0
        assert step.backward > 0


def test_each_phase_is_found_where_it_belongs(tmp_path: Path) -> None:
    for step in alone(tmp_path, with_a_loader):
        assert step.data > 0
        assert step.optimizer > 0
        assert step.evaluation == 0
        assert step.communication == 0, "one worker waits for nobody"
    evaluated = alone(tmp_path / "record", evaluated_between)
    assert evaluated[0].evaluation == 0
    assert all(step.evaluation > 0 for step in evaluated[1:])


def test_waiting_for_others_is_communication(pool: Any, tmp_path: Path) -> None:
    for steps in pool(2).run(recorded, tmp_path, with_a_loader):
        assert all(step.communication > 0 for step in steps)


def test_the_loss_is_the_one_that_backward_started_from(pool: Any, tmp_path: Path) -> None:
    def losses(steps: list[Step]) -> list[float | None]:
        return [step.loss for step in steps]

    expected = losses(alone(tmp_path, with_a_loader))
    assert all(loss is not None and loss > 0 for loss in expected)
    for steps in pool(2).run(recorded, tmp_path / "record", with_a_loader):
        assert losses(steps) == pytest.approx(expected, rel=1e-5)


def vector_loss() -> None:
    w = torch.ones(2, requires_grad=True)
    (w * 2).backward(torch.ones(2))


def test_a_loss_that_is_no_number_is_none(tmp_path: Path) -> None:
    assert [step.loss for step in alone(tmp_path, vector_loss)] == [None]


@pytest.mark.parametrize("script", [with_a_loader, without_an_optimizer], ids=lambda script: script.__name__)
def test_a_script_is_ended_when_it_has_made_enough_steps(tmp_path: Path, script: Script) -> None:
    assert len(alone(tmp_path, script, steps=2)) == 2


def test_enough_is_a_good_end() -> None:
    """It goes through `except Exception` and ends a process with code 0."""
    assert not isinstance(EnoughSteps(), Exception)
    assert EnoughSteps().code == 0


def test_the_pulse_knows_the_latest_step(tmp_path: Path) -> None:
    group = lone_group()
    recorded(group, tmp_path, with_a_loader)
    assert group.pulse.step == 3
    assert group.pulse.latest.step == 3


def test_a_script_that_trains_nothing_leaves_no_steps(tmp_path: Path) -> None:
    assert alone(tmp_path, lambda: None) == []
