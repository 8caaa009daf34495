"""`paceline run --on ray` on a real Ray, which starts on this host. Skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.10f}")
if "fail" in sys.argv:
    raise ValueError("a bad number")
"""


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    line = [sys.executable, "-m", "paceline", "run", "--on", "ray", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=200)


@needs_ray
@pytest.mark.slow
def test_the_same_numbers_and_then_a_failure(tmp_path: Path) -> None:
    found = typed(tmp_path, "-n", "2", "train.py")
    assert found.returncode == 0, found.stderr
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == plain.stdout
    failed = typed(tmp_path, "-n", "1", "train.py", "fail")
    assert failed.returncode == 1
    assert "ValueError: a bad number" in failed.stderr
    assert "Traceback (most recent call last):\n  File" in failed.stderr


@needs_ray
@pytest.mark.slow
def test_a_series_in_a_job_of_ray_needs_no_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(4)", "range(40)"))
    line = [
        sys.executable,
        "-m",
        "paceline",
        "scale",
        "-n",
        "1,2",
        "--repeat",
        "1",
        "--steps",
        "9",
        "--json",
        "train.py",
    ]
    job = os.environ | {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
    found = subprocess.run(line, cwd=tmp_path, env=job, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert [point["workers"] for point in told["points"]] == [1, 2]
    assert told["same_numbers"]["same"]
    for trial in (tmp_path / told["record"] / "trials").iterdir():
        assert json.loads((trial / "run.json").read_text())["topology"]["options"] == ["--on", "ray"]


@needs_ray
@pytest.mark.parametrize(
    ("address", "told"), [("127.0.0.1:1", "no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1"), ("x", "cannot use")]
)
def test_a_wrong_address_is_told_of_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    found = typed(tmp_path, "train.py")
    assert found.returncode == 1
    assert told in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_error_says_what_to_install(tmp_path: Path) -> None:
    found = typed(tmp_path, "train.py")
    assert found.returncode == 2
    assert "pip install ray" in found.stderr
