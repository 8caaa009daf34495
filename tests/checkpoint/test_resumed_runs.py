"""A run that was saved continues on another number of workers: the same losses, no sample repeated or skipped."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from typist import Typist

SCRIPT = """
import os, sys, torch, paceline, paceline.data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

path, stop, how, source = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(50, 4)
y = x.sin().sum(1, keepdim=True)
if source == "pipeline":
    loader = paceline.data.arrays(x, y).shuffle(seed=3).batch(6)
else:
    loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True, num_workers=int(source))
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), "adam": lambda p: torch.optim.Adam(p, lr=0.01)}
optimizer = make[how](model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
step = epoch = 0
if os.path.exists(path):
    found = paceline.load(path, model, optimizer, loader, scheduler=scheduler)
    step, epoch = found.step, found.extra["epoch"]
while step < stop:
    for inputs, targets in loader:
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        print(step, epoch, repr(loss.item()))
        if step in (3, stop):
            later = step == 3  # the next save waits for it
            paceline.save(path, model, optimizer, loader, scheduler=scheduler, step=step, extra={"epoch": epoch},
                          asynchronous=later)
        if step == stop:
            break
    else:
        epoch += 1
"""


# Every one is saved, and loaded by every other and by itself. A server with several workers computes other numbers: it
# has a test of its own.
MATRIX = [
    ("mirrored", 1),
    ("mirrored", 3),
    ("zero1", 2),
    ("zero1", 3),
    ("central", 2),
    ("central", 3),
    ("sharded", 2),
    ("sharded", 3),
    ("mesh(data=1,model=2)", 2),
    ("mesh(data=2,model=2)", 4),
    ("pipeline(stages=2)", 2),
    ("server(staleness=0)", 1),
]


def losses(typist: Typist, folder: Path, where: Any, *arguments: Any) -> list[tuple[int, int, float]]:
    strategy, workers = where if isinstance(where, tuple) else ("mirrored", where)
    typed = ("run", "-n", str(workers), "--strategy", strategy, "train.py", *map(str, arguments))
    done = typist.type(folder, *typed)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    return [(int(step), int(epoch), float(loss)) for step, epoch, loss in lines]


@pytest.mark.parametrize(
    ("how", "source"),
    [
        pytest.param("sgd", "0", marks=pytest.mark.slow),
        ("adam", "0"),
        pytest.param("sgd", "pipeline", marks=pytest.mark.slow),
        pytest.param("sgd", "2", marks=pytest.mark.slow),
        pytest.param("adam", "pipeline", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_on_3_then_2_workers(typist: Typist, tmp_path: Path, how: str, source: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    expected = losses(typist, tmp_path, 1, "whole", 20, how, source)
    found = []
    for workers, stop in ((3, 5), (2, 20)):  # in the first and the third epoch of 9 batches
        found += losses(typist, tmp_path, workers, "ck", stop, how, source)
    assert [line[:2] for line in found] == [line[:2] for line in expected]
    assert [line[2] for line in found] == pytest.approx([line[2] for line in expected], rel=1e-10)


def continues(typist: Typist, folder: Path, chain: list[tuple[str, int]]) -> None:
    (folder / "train.py").write_text(SCRIPT)
    expected = losses(typist, folder, 1, "whole", 2 * len(chain), "adam", "0")
    found = []
    for number, where in enumerate(chain):
        found += losses(typist, folder, where, "ck", 2 * number + 2, "adam", "0")
    assert [line[:2] for line in found] == [line[:2] for line in expected]
    assert [line[2] for line in found] == pytest.approx([line[2] for line in expected], rel=1e-9)


@pytest.mark.slow
def test_a_run_continues_under_another_strategy(typist: Typist, tmp_path: Path) -> None:
    continues(typist, tmp_path, [("zero1", 2), ("sharded", 3), ("central", 3), ("sharded", 2), ("mirrored", 1)])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 146 runs
def test_a_run_continues_from_every_strategy_under_every_other(typist: Typist, tmp_path: Path) -> None:
    chain = []  # in which every ordered pair, also of equals, stands side by side once
    for number, first in enumerate(MATRIX):
        chain += [first, *(where for second in MATRIX[number + 1 :] for where in (first, second))]
    chain.append(MATRIX[0])
    assert len(set(itertools.pairwise(chain))) == len(MATRIX) ** 2
    continues(typist, tmp_path, chain)


SUMS = """
import os, sys, torch, paceline
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
if sys.argv[1] == "load":
    paceline.load("ck", model, optimizer)
else:
    for _ in range(3):
        loss = model(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    paceline.save("ck", model, optimizer)
state = optimizer.state_dict()["state"]
print("sums", *(tensor.double().sum().item().hex() for tensor in model.state_dict().values()))
print("sums", *(state[k][name].double().sum().item().hex() for k in state for name in ("exp_avg", "exp_avg_sq")))
"""


@pytest.mark.slow
def test_what_servers_hold_is_loaded_by_every_strategy(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SUMS)

    def sums(strategy: str, workers: int, what: str) -> list[str]:
        done = typist.type(tmp_path, "run", "-n", str(workers), "--strategy", strategy, "train.py", what)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("sums")]

    saved = sums("server(staleness=0,servers=2)", 2, "save")
    assert len(saved) == 2
    for strategy, workers in (*MATRIX, ("server(staleness=4)", 3)):
        assert sums(strategy, workers, "load") == saved, strategy


@pytest.mark.slow
def test_a_damaged_checkpoint_ends_the_run_with_the_name_of_the_file(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    losses(typist, tmp_path, 2, "ck", 4, "sgd", "0")
    files = sorted((tmp_path / "ck").glob("tensors-*/*"))
    assert [file.name for file in files] == ["rank0-00001.safetensors", "rank1-00001.safetensors"]
    files[1].write_bytes(files[1].read_bytes()[:-1])
    done = typist.type(tmp_path, "run", "-n", "3", "train.py", "ck", "9", "sgd", "0")
    assert done.returncode != 0
    assert str(files[1]) in done.stderr
    assert "paceline checkpoint verify" in done.stderr


GROWS = """
import os, sys, torch, paceline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.arange(40.0).view(40, 1)
loader = DataLoader(TensorDataset(x), batch_size=3, shuffle=True)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
if os.path.exists("ck"):
    paceline.load("ck", model, optimizer, loader)
for number, (inputs,) in enumerate(loader):
    loss = model(inputs).mean()
    loss.backward()
    optimizer.step()
    print(*inputs.flatten().int().tolist())
    if number == int(sys.argv[1]):
        paceline.save("ck", model, optimizer, loader)
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(2, 3, 1), (3, 1, 2)])
def test_no_sample_is_repeated_or_skipped_where_the_batch_grows_with_the_workers(
    typist: Typist, tmp_path: Path, workers: tuple[int, ...]
) -> None:
    (tmp_path / "train.py").write_text(GROWS)
    seen: list[int] = []
    for number, last in zip(workers, (1, 0, 99), strict=True):
        done = typist.type(tmp_path, "run", "-n", str(number), "--batch", "scale", "train.py", str(last))
        assert done.returncode == 0, done.stderr
        seen += [int(word) for line in done.stdout.splitlines() if line[:1].isdigit() for word in line.split()]
    assert sorted(seen) == list(range(40))
