"""Scripts that run out of memory, under a real limit of the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typist import Typist

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training)


model = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(8192, 64), torch.randint(3, (8192,))
for step in range(12):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
"""
LIMIT = "180MB"  # as it is, activations take 290 MB; recomputed by blocks, 60


def test_a_run_that_dies_of_memory_says_what_to_type(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = typist.type(tmp_path, "run", "--memory-limit", LIMIT, "train.py")
    assert done.returncode == 1
    assert "Memory ran out: weights" in done.stderr
    assert f"\npaceline fit --memory-limit {LIMIT} train.py\n" in done.stderr


@pytest.mark.slow
def test_what_fit_prints_runs_with_the_same_numbers(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = typist.type(tmp_path, "fit", "--json", "--memory-limit", LIMIT, "train.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    chosen = told["rows"][told["chosen"]]
    assert chosen["change"]
    assert chosen["away"] < 1e-5
    assert told["account"]["failed"].endswith("train.py:15")
    plain = typist.type(tmp_path, "run", "--quiet", "train.py")
    fitted = typist.type(tmp_path, *told["command"].split()[1:])
    assert fitted.returncode == 0, fitted.stderr
    for a, b in zip(plain.stdout.split(), fitted.stdout.split(), strict=True):
        assert float(a) == pytest.approx(float(b), abs=2e-6)
