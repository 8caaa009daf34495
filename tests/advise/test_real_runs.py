"""`paceline profile` on a script with troubles of its own: named, with their lines, and proven."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.advise.finding import read_findings

SCRIPT = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 40 * 8
    def __getitems__(self, indices):
        time.sleep(0.03)
        return [(torch.full((8,), i / 800), torch.tensor([float(i % 3)])) for i in indices]

class Model(nn.Linear):
    def forward(self, x):
        time.sleep(0.03)
        return super().forward(x)

class Sleepy:  # takes its time to be saved
    def __reduce__(self):
        time.sleep(0.05)
        return (int, ())

torch.manual_seed(0)
model = Model(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(DataLoader(Slow(), batch_size=8), 1):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        torch.save({"weights": model.state_dict(), "slow": Sleepy()}, "model.pt")
        model.eval()
        for _ in range(12):
            model(x)
        model.train()
"""


def run(folder: Path, *options: str) -> tuple[dict, Path]:
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "profile", "--json", *options, "train.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), next(iter((folder / "paceline-runs").iterdir()))


@pytest.mark.slow
def test_troubles_of_a_real_script_are_named_and_the_mod_is_proven(tmp_path):
    told, record = run(tmp_path, "-n", "1", "--steps", "3", "--whole-run", "--prove")
    found = {finding["rule"]: finding for finding in told["findings"]}
    assert {"input_bound", "checkpoints", "validation"} <= set(found)
    line = SCRIPT.splitlines().index(next(text for text in SCRIPT.splitlines() if "torch.save" in text)) + 1
    assert found["checkpoints"]["where"] == f"{tmp_path / 'train.py'}:{line}"
    # Half of a step is a sleep in the loader, which a process of its own hides.
    loader = found["input_bound"]
    assert loader["mod"].startswith("loader=")
    assert 1.5 < loader["predicted_gain"] < 2.2
    assert loader["predicted_gain"] / 1.5 < loader["measured_gain"] < loader["predicted_gain"] * 1.5
    assert loader["proof"].startswith("measured 1.")
    assert found["validation"]["measured_gain"] is None
    assert "by hand" in found["validation"]["proof"]
    kept = read_findings(record)
    assert [one.rule for one in kept] == [one["rule"] for one in told["findings"]]
    assert any(one.measured_gain for one in kept)
    assert (record / "trials" / "baseline.r1" / "run.json").exists()


def test_what_a_proof_cannot_do_is_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "profile", "--prove", "--trace", "trace.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.returncode == 2
    assert "--prove" in done.stderr
