"""A rank that is slow on purpose is named, with the right cause."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.tables.records import read_record
from paceline.tables.stragglers import stragglers

SCRIPT = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from paceline.settings import of_this_process

SLOW, WHERE = of_this_process().rank == 1, "{where}"

class Numbers(Dataset):
    def __len__(self):
        return 8 * 40
    def __getitem__(self, index):
        if SLOW and WHERE == "data":
            time.sleep(0.003)
        return torch.randn(4), index % 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x):
        if SLOW and WHERE == "forward":
            time.sleep(0.012)
        return self.linear(x)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Numbers(), batch_size=8):
    time.sleep(0.004)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow  # its small sibling: tests/advise/test_slow_worker.py
@pytest.mark.parametrize("where", ["data", "forward"])
def test_the_slow_rank_is_named_with_its_cause(tmp_path, where):
    (tmp_path / "train.py").write_text(SCRIPT.format(where=where))
    line = [sys.executable, "-m", "paceline", "run", "-n", "2", "--quiet", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    table = stragglers(read_record(next((tmp_path / "paceline-runs").iterdir())).steps)
    first = table.row(0, named=True)
    assert (first["rank"], first["slow"], first["cause"]) == (1, True, where), table
    assert 0.006 < first["behind"] < 0.05
    assert not table.row(1, named=True)["slow"]
