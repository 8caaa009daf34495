"""`tune` as a person types it, on a tiny script with a tiny budget. What it finds depends on the machine; what it says
must hold wherever it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.record import read_run

QUICK = ("--budget", "90s", "--steps", "40", "--threads", "1")

# Each sample is loaded so slowly that a batch by one gather is several times faster, on any machine.
SLOW_TO_LOAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(30_000, 4)
y = (x.sum(1) > 0).long()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(x, y), batch_size=500, shuffle=True)
for epoch in range(1000):
    for inputs, labels in loader:
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
"""
# The same on a clock that moves when it is told to, by what is loaded and by what is computed: then gains are numbers
# that are known, however busy the machine.
PLAYED = """\
import time
from torch.utils.data import TensorDataset
from paceline.comm import stopwatch

class Clock:
    now = time.perf_counter()
    def perf_counter(self):
        return self.now

def load(dataset, index, plain=TensorDataset.__getitem__):
    clock.now += 0.001
    return plain(dataset, index)

clock = stopwatch.time = Clock()
TensorDataset.__getitem__ = load
""" + SLOW_TO_LOAD.replace("30_000", "3_000").replace("=500", "=50").replace(
    "        logits", "        clock.now += 0.01\n        logits"
)
# The same with its data in one piece already: a step is a sleep, which no mod makes shorter.
TUNED = """\
import time
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(5000, 4)
y = (x.sum(1) > 0).long()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10_000):
    index = torch.randint(len(x), (50,))
    loss = nn.functional.cross_entropy(model(x[index]), y[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.fixture
def tune(tmp_path, typist) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Types `paceline tune ... train.py`, with this script."""

    def type_it(script: str, *options: str, verb: str = "tune") -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(script)
        return typist.type(tmp_path, verb, *options, "train.py")

    return type_it


@pytest.mark.parametrize(
    ("script", "budget", "gains"),
    [
        pytest.param(PLAYED, "10m", (5.9, 6.1), id="played clock"),
        pytest.param(SLOW_TO_LOAD, "90s", (1.5, 1000), id="real time", marks=pytest.mark.slow),
    ],
)
def test_what_makes_a_script_faster_is_found_proven_and_kept(tune, tmp_path, script, budget, gains):
    trials = ("--budget", budget, *QUICK[2:])
    done = tune(script, *trials, "--only", "resident", "--only", "fused_optimizer", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["mod"]: row for row in document["mods"]}
    assert rows["resident"]["kept"], done.stderr
    assert gains[0] < rows["resident"]["gain"] < gains[1]
    assert rows["resident"]["loss_difference"] < 1e-3
    assert gains[0] < document["final"]["gain"] < gains[1]
    assert document["command"] == "paceline run --preset tuned --threads 1 train.py"
    assert "as fast" in done.stderr
    record = tmp_path / document["record"]
    assert (record / "plots" / "tune.svg").is_file()
    done = tune(script, "--preset", "tuned", "--steps", "20", "--json", verb="run")
    assert done.returncode == 0, done.stderr
    assert "resident" in json.loads(done.stdout)["mods"]
    assert "preset of" in done.stderr


@pytest.mark.slow
def test_on_a_tuned_script_there_is_nothing_to_gain(tune):
    done = tune(TUNED, *QUICK, "--only", "resident", "--only", "fused_optimizer")
    assert done.returncode == 0, done.stderr
    assert "nothing to gain" in done.stdout
    assert "to keep it, type" not in done.stdout


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (TUNED.replace("10_000", "9").replace("optimizer.step()", "pass"), "no optimizer step"),
        pytest.param(
            TUNED.replace("optimizer.step()", "pass"),
            "no optimizer step within the budget of 10 s",
            marks=pytest.mark.slow,
        ),
        (TUNED.replace("10_000", "3"), "ended after 3 steps"),
        (TUNED.replace("loss = nn", "loss = float('nan') * nn"), "NaN"),
        ("raise ValueError('no such data')\n", "ValueError: no such data"),
    ],
    ids=["no optimizer step", "no optimizer step and no end", "three steps", "NaN", "raises"],
)
def test_a_script_that_cannot_be_tuned_is_told_why(tune, script, says):
    # Only one case is about the budget; in the others a busy machine may take longer.
    budget = "10s" if "budget of 10 s" in says else "2m"
    done = tune(script, "--budget", budget, "--steps", "40", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert says.lower() in (document["error"]["message"] + done.stderr).lower()
    assert document["error"]["advice"]
    assert "Traceback" not in done.stderr or says.startswith("ValueError")
    assert len(done.stderr.splitlines()) < 30


@pytest.mark.slow
def test_a_script_that_does_not_repeat_itself_is_told_where_two_equal_runs_part(tune):
    unseeded = TUNED.replace("torch.manual_seed(0)", "torch.manual_seed(time.time_ns() % 2**31)")
    done = tune(unseeded, *QUICK, "--only", "fused_optimizer", "--json")
    assert done.returncode == 0, done.stderr
    assert "is not deterministic" in done.stderr
    assert json.loads(done.stdout)["guard"]["parted"] == 1


@pytest.mark.slow
def test_ctrl_c_leaves_a_record_that_is_resumed(tune, tmp_path):
    options = (*QUICK, "--only", "fused_optimizer")
    (tmp_path / "train.py").write_text(TUNED)
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "tune", *options, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: journaled(tmp_path) >= 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "--resume" in out
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.interrupted
    before = journaled(tmp_path)
    done = tune(TUNED, *options, "--resume", str(record), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] > before
    lines = [json.loads(line)["name"] for line in (record / "journal.jsonl").read_text().splitlines()]
    assert len(lines) == len(set(lines))


def journaled(folder: Path) -> int:
    """Trials that have ended."""
    found = list(folder.glob("paceline-runs/*/journal.jsonl"))
    return len(found[0].read_text().splitlines()) if found else 0


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
