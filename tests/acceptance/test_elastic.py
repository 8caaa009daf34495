"""Elastic runs: workers are killed at any moment, and the numbers after that are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import FOLDER, difference
from plain import PlainPython
from typist import Typist

from paceline.record import read_run

# Batch norm, dropout, a penalty on weights that is computed outside the model, accumulated gradients, files.
TRAIN = """
import os, signal, sys
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
{fault}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1), nn.Flatten())
        self.head = nn.Linear(96, 10)
    def forward(self, x):
        here("forward")
        h = self.body(x)
        if h.requires_grad:
            h.register_hook(lambda grad: here("backward"))
        return self.head(h)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = TensorDataset(torch.randn(60, 3, 6, 6), torch.randint(0, 10, (60,)))
step = 0
log = open("log.csv", "w")
for epoch in range(2):
    model.train()
    for x, y in DataLoader(data, batch_size=20, shuffle=True):
        out = model(x)
        here("loss")
        loss = F.cross_entropy(out, y) + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        here("before the step")
        if step % 2:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 4 == 1)
        step += 1
        here("after the step")
        print(step, f"{{loss.item():.9f}} {{(out.argmax(1) == y).sum().item()}}", flush=True)
        print(step, file=log)
    model.eval()
    with torch.no_grad():
        here("evaluation")
        print("eval", f"{{F.cross_entropy(model(data.tensors[0]), data.tensors[1]).item():.9f}}")
    torch.save(model.state_dict(), "model.tmp")
    here("saving")
    os.replace("model.tmp", f"model{{epoch}}.pt")
log.close()
print("end", f"{{torch.load('model1.pt')['head.bias'].sum().item():.9f}}")
"""
NONE = "def here(place): pass"
# A worker kills itself when it comes to a place for the given time.
AT_A_PLACE = """
from paceline.settings import of_this_process
from collections import deque
times = deque()  # a number would be one by which the model may branch, another one on each worker
def here(place):
    if of_this_process().rank in {ranks} and place == {place!r}:
        times.append(place)
        if len(times) == {times}:
            os.kill(os.getpid(), signal.SIGKILL)
"""
# Notes who was lost, at the seam on_membership.
NOTED = """
from paceline.script.seams.api import current
class Noting:
    def on_membership(self, change):
        with open("membership.txt", "a") as file:
            print(change.lost, change.left, change.rank, file=file)
current().subscribe(Noting())
"""
# A worker kills itself in its collective of this number, before, in the middle of, or after telling the others.
IN_A_COLLECTIVE = """
from paceline.comm.memory import shm_rendezvous, signals
from paceline.settings import of_this_process
def here(place): pass
made, plain = 0, shm_rendezvous.Meeting.signal
def signalled(meeting):
    global made
    made += 1
    if made == {number} and {how!r} == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if made == {number} and {how!r} == "half":
        meeting._posts = meeting._posts[:1]
    plain(meeting)
    if made == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
if of_this_process().rank == {rank}:
    shm_rendezvous.Meeting.signal = signalled
"""


@pytest.fixture(scope="module")
def undisturbed(plain: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "train.py").write_text(TRAIN.format(fault=NONE))
    return plain.printed(folder, "train.py")


def check(
    typist: Typist, folder: Path, fault: str, undisturbed: str, *, lost: int = 1, workers: int = 3, script: str = TRAIN
) -> None:
    (folder / "train.py").write_text(script.format(fault=fault))
    done = typist.type(folder, "run", "-n", str(workers), "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == undisturbed
    assert done.stderr.count("the run goes on with") == lost
    assert (folder / "log.csv").read_text() == "1\n2\n3\n4\n5\n6\n"
    assert {path.name for path in folder.iterdir()} >= {"model0.pt", "model1.pt", "log.csv"}
    assert not (folder / "model.tmp").exists()


@pytest.mark.parametrize(
    ("place", "rank", "times"),
    [
        ("forward", 1, 6),
        ("backward", 0, 4),
        ("saving", 0, 1),
        # Two are killed in a backward, and one in a loss that too few workers survive, in tests of their own.
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("backward", 2, 5), ("loss", 0, 2))),
    ],
)
def test_a_killed_worker_changes_no_number(
    typist: Typist, tmp_path: Path, undisturbed: str, place: str, rank: int, times: int
) -> None:
    check(typist, tmp_path, AT_A_PLACE.format(place=place, ranks=[rank], times=times) + NOTED, undisturbed)
    left = tuple(other for other in range(3) if other != rank)
    assert (tmp_path / "membership.txt").read_text() == f"({rank},) {left} 0\n"


def test_the_last_worker_goes_on_alone(typist: Typist, tmp_path: Path, undisturbed: str) -> None:
    check(typist, tmp_path, AT_A_PLACE.format(place="backward", ranks=[0, 2], times=5), undisturbed, lost=2)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["before the step", "after the step", "evaluation", "saving", "loss", "forward"])
def test_a_worker_killed_at_any_place(typist: Typist, tmp_path: Path, undisturbed: str, place: str, rank: int) -> None:
    check(typist, tmp_path, AT_A_PLACE.format(place=place, ranks=[rank], times=2), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "half", "after"])
@pytest.mark.parametrize("number", range(1, 60, 3))
def test_a_worker_killed_in_any_collective(
    typist: Typist, tmp_path: Path, undisturbed: str, number: int, how: str
) -> None:
    check(typist, tmp_path, IN_A_COLLECTIVE.format(number=number, how=how, rank=number % 3), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_killed_at_a_random_moment(tmp_path: Path, undisturbed: str, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "train.py").write_text(TRAIN.format(fault=NONE))
    command = [sys.executable, "-m", "paceline", "run", "-n", "4", "--elastic", "1", "--quiet", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        printed = [run.stdout.readline() for _ in range(chance.randint(1, 5))]
        (record,) = (tmp_path / "paceline-runs").iterdir()
        victim = chance.choice(read_run(record).workers)
        os.kill(victim.pid, signal.SIGKILL)
        printed += run.stdout.readlines()
        said = run.stderr.read()
    assert run.returncode == 0, said
    assert "".join(printed) == undisturbed


# Calls that are computed in parts, change their argument, count in an object, write into a dictionary.
ODD = """
import itertools, os, signal
import torch
from torch import nn
{fault}
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)
    def forward(self, x):
        h = self.a(x)
        here("between parts")
        return self.b(h - h.mean(0))
class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 3)
    def forward(self, x):
        here("before the change")
        h = torch.tanh(self.a(x.relu_()))
        if h.requires_grad:
            h.register_hook(lambda grad: here("backward"))
        return h
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.calls, self.noise = nn.Linear(5, 3), itertools.count(1), torch.zeros(3)
    def forward(self, x):
        self.noise.add_(1)
        h = self.a(x) / next(self.calls)
        here("counted")
        return h + self.noise
class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 3)
    def forward(self, batch):
        batch["h"] = self.a(batch["x"])
        here("written")
def written(x):
    batch = {{"x": x}}
    writes(batch)
    return batch["h"]
writes = Writes()
models = [Parts(), InPlace(), Counts(), writes]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.3)
for step in range(5):
    x = torch.randn(9, 5)
    loss = sum(((model(given) - given[:, :3]) ** 2).mean() for model in [*models[:3], written] for given in [x.clone()])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{{loss.item():.9f}} {{sum(p.sum().item() for m in models for p in m.parameters()):.9f}}", flush=True)
"""


@pytest.fixture(scope="module")
def oddly(plain: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("oddly")
    (folder / "train.py").write_text(ODD.format(fault=NONE))
    return plain.printed(folder, "train.py")


@pytest.mark.parametrize(
    ("place", "times"),
    [("between parts", 3), ("backward", 1), ("counted", 3), ("before the change", 3), ("written", 3)],
)
def test_a_call_that_changes_things_is_made_again_from_what_it_got(
    typist: Typist, tmp_path: Path, oddly: str, place: str, times: int
) -> None:
    (tmp_path / "train.py").write_text(ODD.format(fault=AT_A_PLACE.format(place=place, ranks=[1], times=times)))
    done = typist.type(tmp_path, "run", "-n", "2", "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == oddly
    assert done.stderr.count("the run goes on with") == 1


# Making a sample takes so long that in other runs each worker makes a part of the batch, from the second loop on.
PIPELINE = """
import os, signal, time
import torch
from torch import nn
from paceline import data
{fault}
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
def slow(row):
    time.sleep(0.003)
    return row
pipeline = data.arrays(torch.randn(48, 8), torch.randint(0, 4, (48,))).shuffle(48, seed=0).map(slow).batch(12)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in pipeline:
        loss = nn.functional.cross_entropy(model(x), y)
        here("loss")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(len(x), f"{{loss.item():.9f}}", flush=True)
"""


def test_a_pipeline_has_all_samples_without_a_killed_worker(typist: Typist, plain: PlainPython, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PIPELINE.format(fault=NONE))
    fault = AT_A_PLACE.format(place="loss", ranks=[1], times=9)
    (tmp_path / "train.py").write_text(PIPELINE.format(fault=fault))
    done = typist.type(tmp_path, "run", "-n", "3", "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.printed(tmp_path, "plain.py")
    assert done.stderr.count("the run goes on with") == 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [[1], [0, 2]])
@pytest.mark.parametrize("script", [TRAIN, PIPELINE])
def test_a_scaled_batch_keeps_its_size_without_a_killed_worker(
    typist: Typist, tmp_path: Path, script: str, ranks: list[int]
) -> None:
    printed = []
    for fault in (NONE, AT_A_PLACE.format(place="loss", ranks=ranks, times=1)):
        (tmp_path / "train.py").write_text(script.format(fault=fault))
        done = typist.type(tmp_path, "run", "-n", "3", "--batch", "scale", "--elastic", "1", "train.py")
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]


def test_too_few_workers_end_the_run(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault=AT_A_PLACE.format(place="loss", ranks=[1], times=2)))
    done = typist.type(tmp_path, "run", "-n", "2", "--elastic", "2", "train.py")
    assert done.returncode != 0
    assert "Worker 1" in done.stderr
    assert "killed by SIGKILL" in done.stderr


def test_gradients_of_gradients_are_refused(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(3, 1)\nx = torch.randn(8, 3, requires_grad=True)\n"
        "grad, = torch.autograd.grad(model(x).sum(), x, create_graph=True)\ngrad.pow(2).sum().backward()\n"
    )
    done = typist.type(tmp_path, "run", "-n", "2", "--elastic", "1", "train.py")
    assert done.returncode != 0
    assert "--elastic cannot make torch.autograd.grad" in done.stderr
    assert "Traceback" not in done.stderr


def test_tensors_left_in_attributes_are_made_again_with_their_call(
    typist: Typist, plain: PlainPython, tmp_path: Path
) -> None:
    """An image is optimised, by losses that layers leave in attributes."""
    script = FOLDER / "style_transfer.py"
    expected = plain.printed(tmp_path, script)
    done = typist.type(tmp_path, "run", "-n", "2", "--elastic", "1", str(script))
    assert done.returncode == 0, done.stderr
    assert not difference(expected, done.stdout, 1e-4)


def test_a_tensor_that_a_hook_has_kept_is_refused(typist: Typist, tmp_path: Path) -> None:
    done = typist.type(tmp_path, "run", "-n", "2", "--elastic", "1", str(FOLDER / "forward_hook_capture.py"))
    assert done.returncode != 0
    assert "a tensor that left a model past its outputs" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-n", "2", "--elastic", "3"), "start more than 3 workers"),
        (("-n", "2", "--elastic", "1", "--strategy", "zero1"), "--elastic and --strategy exclude each other"),
        (("-n", "2", "--elastic", "1", "--compression", "bf16"), "--elastic and --compression exclude each other"),
        (("--hosts", "localhost:1,127.0.0.1:1", "--elastic", "3"), "start more than 3 workers"),
    ],
)
def test_what_cannot_be_elastic_is_said_at_once(
    typist: Typist, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "train.py").write_text("")
    done = typist.type(tmp_path, "run", *options, "train.py")
    assert done.returncode == 2
    assert said in done.stderr
