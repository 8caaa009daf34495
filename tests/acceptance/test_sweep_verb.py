"""`paceline sweep` as a person would type it: real workers, interrupted and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.record import read_run

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(1024, 8)), batch_size=16, shuffle=True)
for epoch in range(100):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def sweep(folder: Path, *options: str) -> subprocess.Popen[str]:
    short = ("--to", "64", "--steps", "12", "--repeat", "1")
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", "sweep", "-n", "2", *short, *options, "train.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    first = sweep(tmp_path, "--json")
    try:
        deadline = time.monotonic() + 60
        while not any(tmp_path.glob("paceline-runs/*/journal.jsonl")):
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=30)
    finally:
        first.kill()
    assert first.returncode == 130
    assert "Traceback" not in err, err
    document = json.loads(out)
    record = tmp_path / document["record"]
    assert document["interrupted"]
    assert read_run(record).outcome.interrupted
    before = (record / "journal.jsonl").read_bytes()
    assert before.count(b"\n") >= max(1, len(document["points"]))

    again = sweep(tmp_path, "--json", "--resume", document["record"])
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    document = json.loads(out)
    assert tmp_path / document["record"] == record
    assert (record / "journal.jsonl").read_bytes().startswith(before)
    batches = [point["batch"] for point in document["points"]]
    assert {16, 32, 64} <= set(batches)
    assert document["knee"] in (None, *batches)  # None: the curve of a busy machine shows no knee
    assert all(0 < p["low"] <= p["samples_per_s"] <= p["high"] and p["memory"] > 0 for p in document["points"])
    assert (record / "plots" / "sweep.svg").is_file()
