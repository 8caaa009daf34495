"""Elastic Horovod scripts: workers are killed, and training goes on from the last commit, with new ones if allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typist import Typist

TRAIN = """
import os, pathlib, signal, torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
data = torch.randn(144, 4)

@hvd.elastic.run
def train(state):
    while state.step < 12:
        batch = data[state.step * 12:][:12]
        mine = batch[hvd.rank() * 12 // hvd.size():(hvd.rank() + 1) * 12 // hvd.size()]
        optimizer.zero_grad()
        loss = (model(mine) - mine.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        mark = pathlib.Path(f"killed{{state.step}}")
        if {victims}.get(state.step) == hvd.rank() and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        whole = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(state.step, hvd.size(), f"{{whole.item():.9f}}", flush=True)
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
"""


@pytest.fixture(scope="module")
def undisturbed(typist: Typist, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "train.py").write_text(TRAIN.format(victims={}))
    done = typist.type(folder, "run", "-n", "1", "train.py")
    assert done.returncode == 0, done.stderr
    return {step: loss for step, _, loss in map(str.split, done.stdout.splitlines())}


@pytest.mark.parametrize(("bounds", "sizes"), [("1", {3, 2, 1}), ("1:3", {3, 2})])
def test_training_goes_on_from_the_last_commit(
    typist: Typist, tmp_path: Path, undisturbed: dict[str, str], bounds: str, sizes: set[int]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(victims={3: 1, 6: 0}))
    done = typist.type(tmp_path, "run", "-n", "3", "--elastic", bounds, "train.py")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {step for step, _, _ in lines} == undisturbed.keys()
    assert all(loss == undisturbed[step] for step, _, loss in lines)
    assert {int(size) for _, size, _ in lines} == sizes
    assert done.stderr.count("the run goes on with") == 2
    assert done.stderr.count("starts again") == (2 if ":" in bounds else 0)


def test_a_run_that_failed_starts_again_from_a_written_commit(
    typist: Typist, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(victims={7: 0}))
    done = typist.type(tmp_path, "run", "-n", "2", "--save-every", "2", "--restarts", "1", "train.py")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [int(step) for step, _, _ in lines] == [*range(7), *range(4, 12)]  # commits come at 2, 4, 6, …
    assert all(loss == undisturbed[step] for step, _, loss in lines)
