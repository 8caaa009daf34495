"""A script that writes through fsspec's own file systems, in memory and on disk, and reads it back on every worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from typist import Typist

SCRIPT = """
import os

import fsspec
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fsspec.open("memory://runs/metrics.csv", "w") as log, fsspec.open("local.csv", "w") as mine:
    for step in range(5):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for file in (log, mine):
            file.write(f"{step},{loss.item():.3f}\\n")
with fsspec.open("memory://model.pt", "wb") as file:
    torch.save(model.state_dict(), file)
with fsspec.open("memory://model.pt", "rb") as file:
    print("saved:", sorted(torch.load(file)))
for place in ("memory://runs/metrics.csv", "file://" + os.path.abspath("local.csv")):
    with fsspec.open(place, "r") as file:
        print(place.partition(":")[0], len(file.readlines()))
print("there:", fsspec.filesystem("file").exists("local.csv"))
"""


def test_what_a_worker_writes_it_reads_back(typist: Typist, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "train.py").write_text(SCRIPT)
    typed = typist.type(tmp_path, "run", "-n", "2", "train.py")
    assert typed.returncode == 0, typed.stderr
    lines = typed.stdout.splitlines()
    assert lines[:4] == ["saved: ['bias', 'weight']", "memory 5", "file 5", "there: True"]
    assert len((tmp_path / "local.csv").read_text().splitlines()) == 5, "rank 0's, once"
