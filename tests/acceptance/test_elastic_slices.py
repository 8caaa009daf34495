"""Elastic runs in the slice view: a lost worker takes at most its slice of one step along, and the run says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain import PlainPython
from test_elastic import AT_A_PLACE, NONE
from typist import Typist

pytestmark = pytest.mark.timeout(200)
HOSTS = ("--hosts", "localhost:2,127.0.0.1:2")
HERE = ("-n", "4")
# `left`: the rows of a batch that count. Each line ends in a number of the worker's own slice.
TRAIN = """
import os, signal, sys
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
{fault}
def left(step, x, y):
    return x, y
{left}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 12), {layers}nn.ReLU())
        self.head = nn.Linear(12, 10)
    def forward(self, x):
        here("forward")
        h = self.body(x)
        if h.requires_grad:
            h.register_hook(lambda grad: here("backward"))
        return self.head(h)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
centres = torch.randn(10, 8)
labels = torch.randint(0, 10, (90,))
data = TensorDataset(centres[labels] + 0.3 * torch.randn(90, 8), labels)
step = 0
log = open("log.csv", "w")
for epoch in range({epochs}):
    model.train()
    for x, y in DataLoader(data, batch_size=20, shuffle=True):
        step += 1
        x, y = left(step, x, y)
        out = model(x)
        here("loss")
        loss = F.cross_entropy(out, y)
        before = loss.item()
        loss.backward()
        here("before the step")
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        here("after the step")
        hits = (out.argmax(1) == y).sum().item()
        print(step, f"{{before:.9f}} {{loss.item():.9f}} {{norm:.9f}}", "hits", 10 ** (hits % 7), flush=True)
        print(step, file=log)
    model.eval()
    with torch.no_grad():
        print("eval", f"{{F.cross_entropy(model(data.tensors[0]), data.tensors[1]).item():.9f}}")
log.close()
"""
MISSING = """
def left(step, x, y):
    rows = [row for row in range(len(x)) if step != {step} or row * {workers} // len(x) not in {ranks}]
    return x[rows], y[rows]
"""


def alone(plain: PlainPython, folder: Path, left: str = "") -> str:
    """What plain Python prints."""
    (folder / "plain.py").write_text(TRAIN.format(fault=NONE, left=left, layers="", epochs=2))
    return plain.printed(folder, "plain.py")


def numbers(text: str) -> list[list[float]]:
    """The numbers of each line that are not of a slice."""
    lines = [line.partition("hits")[0].replace("eval", "").split() for line in text.splitlines()]
    return [[float(number) for number in line] for line in lines]


def disturbed(
    typist: Typist, folder: Path, where: tuple[str, ...], fault: str, *, layers: str = "", epochs: int = 2
) -> tuple[str, str]:
    """What the run prints, and what it says."""
    (folder / "train.py").write_text(TRAIN.format(fault=fault, left="", layers=layers, epochs=epochs))
    done = typist.type(folder, "run", *where, "--elastic", "1", "--mod", "view=slice", "--seed", "5", "train.py")
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("where", "place", "ranks", "times", "step"),
    [
        (HERE, "backward", [2], 3, 3),
        pytest.param(HERE, "forward", [0], 4, 4, marks=pytest.mark.slow),
        pytest.param(HOSTS, "backward", [0], 3, 3, marks=pytest.mark.slow),
        pytest.param(HERE, "loss", [1], 2, 2, marks=pytest.mark.slow),
        pytest.param(HERE, "loss", [0], 6, 6, marks=pytest.mark.slow),
        pytest.param(HERE, "before the step", [3], 2, 3, marks=pytest.mark.slow),
        pytest.param(HERE, "after the step", [0], 2, 3, marks=pytest.mark.slow),
        pytest.param(HERE, "backward", [0, 2], 3, 3, marks=pytest.mark.slow),
        pytest.param(HERE, "backward", [0, 1, 2], 7, 7, marks=pytest.mark.slow),
        pytest.param(HERE, "loss", [0, 1, 3], 3, 3, marks=pytest.mark.slow),
        pytest.param(HOSTS, "loss", [1], 2, 2, marks=pytest.mark.slow),
        pytest.param(HOSTS, "forward", [3], 2, 2, marks=pytest.mark.slow),
        pytest.param(HOSTS, "backward", [0, 1], 3, 3, marks=pytest.mark.slow),
        pytest.param(HOSTS, "before the step", [2], 2, 3, marks=pytest.mark.slow),
    ],
)
def test_a_lost_worker_takes_its_slice_of_one_step_along(
    typist: Typist,
    plain: PlainPython,
    tmp_path: Path,
    where: tuple[str, ...],
    place: str,
    ranks: list[int],
    times: int,
    step: int,
) -> None:
    """All numbers are those of plain Python without these rows."""
    expected = alone(plain, tmp_path, MISSING.format(step=step, workers=4, ranks=ranks))
    printed, said = disturbed(typist, tmp_path, where, AT_A_PLACE.format(place=place, ranks=ranks, times=times))
    for found, wanted in zip(numbers(printed), numbers(expected), strict=True):
        if found[0] == step:  # the loss before the backward may have been read while all were there
            del found[1], wanted[1]
        assert found == pytest.approx(wanted, rel=1e-6)
    assert said.count("the run goes on with") == len(ranks)
    for rank in ranks:
        assert f"Worker {rank} is lost with its slice of step {step} (slice view): 5 of 20 samples" in said
    assert said.count("is lost with its slice") == len(ranks)
    assert (tmp_path / "log.csv").read_text() == "".join(f"{n}\n" for n in range(1, 11))


@pytest.mark.slow
@pytest.mark.parametrize(("where", "rank"), [(HERE, 1), (HOSTS, 0)])
def test_the_loss_curve_stays_within_tolerance(
    typist: Typist, tmp_path: Path, where: tuple[str, ...], rank: int
) -> None:
    """Batch norm and dropout: what a lost worker has given to the statistics of the others cannot be taken back."""
    layers = "nn.BatchNorm1d(12), nn.Dropout(0.1), "
    calm, _ = disturbed(typist, tmp_path, where, NONE, layers=layers, epochs=6)
    fault = AT_A_PLACE.format(place="backward", ranks=[rank], times=4)
    printed, said = disturbed(typist, tmp_path, where, fault, layers=layers, epochs=6)
    assert f"Worker {rank} is lost with its slice of step 4 (slice view): 5 of 20 samples" in said
    losses, undisturbed = ([line[1] for line in numbers(text) if len(line) > 1] for text in (printed, calm))
    assert losses[:3] == undisturbed[:3]
    assert losses[3] == pytest.approx(undisturbed[3], rel=0.5)  # a mean over fewer rows
    last = sum(undisturbed[-5:]) / 5
    assert last < 0.7 * undisturbed[0]
    assert sum(losses[-5:]) / 5 == pytest.approx(last, abs=0.25 * undisturbed[0])


@pytest.mark.slow
def test_a_worker_lost_in_an_evaluation_takes_nothing_along(typist: Typist, plain: PlainPython, tmp_path: Path) -> None:
    fault = AT_A_PLACE.format(place="forward", ranks=[1], times=6)  # five steps, then an evaluation
    printed, said = disturbed(typist, tmp_path, HERE, fault)
    for found, wanted in zip(numbers(printed), numbers(alone(plain, tmp_path)), strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)
    assert "the run goes on with 3 workers" in said
    assert "is lost with its slice" not in said
