"""The verbs as a person would type them: real workers, small scripts."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import psutil
import pytest

from paceline.record import read_run, read_steps

TRAIN = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
options = parser.parse_args()
torch.manual_seed(0)
inputs = torch.randn(130, 8)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(options.epochs):
    for x, y in DataLoader(data, batch_size=20, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of somebody's scripts."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.fixture
def paceline_(folder, typist) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Types `paceline ...` in that folder."""
    return partial(typist.type, folder)


@pytest.fixture(scope="module")
def plain() -> str:
    """What plain Python prints in three epochs."""
    with redirect_stdout(io.StringIO()) as printed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
        exec(TRAIN, {})
    return printed.getvalue()


def the_record(folder: Path) -> Path:
    [record] = (folder / "paceline-runs").iterdir()
    return record


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.?\d*", text)]


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_run_prints_what_python_prints(folder, paceline_, plain):
    done = paceline_("run", "-n", "2", "train.py", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == pytest.approx(numbers(plain), rel=1e-4)
    assert "2 workers · 21 steps" in done.stderr
    assert "slowest worker: " in done.stderr
    assert f"record: {the_record(folder).relative_to(folder)}" in done.stderr
    summary = done.stderr[done.stderr.index("2 workers · 21 steps") :]  # after the lines of a run that takes long
    assert [line for line in summary.splitlines() if len(line) > 80] == []
    assert read_run(the_record(folder)).outcome.exit_code == 0
    assert [len(read_steps(the_record(folder), rank)) for rank in (0, 1)] == [21, 21]


def test_run_a_module_with_json(folder, paceline_):
    done = paceline_("run", "-n", "2", "--steps", "5", "--json", "-m", "package.train", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["workers"], document["steps"], document["samples"]) == (2, 5, 100)
    assert document["loss"]["first"] > 0
    assert document["samples_per_s"] > 0
    parts = {part: seconds for part, seconds in document["step"].items() if part != "total"}
    assert sum(parts.values()) == pytest.approx(document["step"]["total"], rel=0.01)


def test_a_script_that_raises_is_shown_once_without_our_own_lines(folder, paceline_):
    (folder / "bad.py").write_text("def load():\n    raise ValueError('no such data')\n\nload()\n")
    done = paceline_("run", "-n", "2", "bad.py")
    assert done.returncode == 1
    assert done.stderr.count("\nValueError: no such data\n") == 1
    assert done.stderr.count("\nfailed: worker ") == 1
    assert "in load" in done.stderr
    assert "site-packages" not in done.stderr
    assert "/paceline/" not in done.stderr.replace(str(folder), "")


def test_a_scripts_own_exit_code_is_passed_on(folder, paceline_):
    (folder / "leave.py").write_text("import sys\nprint('bye')\nsys.exit(3)\n")
    done = paceline_("run", "leave.py")
    assert (done.returncode, done.stdout) == (3, "bye\n")


def test_a_missing_script_is_said_at_once_and_leaves_nothing(folder, paceline_):
    done = paceline_("run", "-n", "2", "--json", "trian.py")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Did you mean train.py?" in done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "UsageError"
    assert not (folder / "paceline-runs").exists()


def test_on_a_terminal_the_scripts_lines_stay_whole(folder, typist, plain):
    """Standard output and error are one terminal; after the live line is gone the script's lines are there."""
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, ours)
        code = typist.type_on(os.ttyname(theirs), folder, "run", "-n", "2", "train.py", "--epochs", "3")
        os.close(theirs)
        seen = reading.result()
    os.close(ours)
    assert code == 0, seen.decode()
    # What is left of each line after the last time it was erased.
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line.split("\x1b[2K")[-1]).strip() for line in seen.decode().split("\n")]
    assert "2 workers, no step yet" in seen.decode()
    assert [line for line in lines if line.startswith("epoch")] == plain.splitlines()


def read_all(descriptor: int) -> bytes:
    seen = b""
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            return seen
        if not data:
            return seen
        seen += data


def test_scale(folder, paceline_):
    done = paceline_("scale", "-n", "1,2", "--repeat", "2", "--steps", "12", "--json", "train.py", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [point["workers"] for point in document["points"]] == [1, 2]
    for point in document["points"]:
        assert 0 < point["low"] <= point["samples_per_s"] <= point["high"]
    assert document["points"][0]["speedup"] == 1.0
    assert document["same_numbers"]["checked"]
    assert document["same_numbers"]["same"], document["same_numbers"]
    record = folder / document["record"]
    assert (record / "plots" / "scale.svg").is_file()
    assert (record / "verdict.json").is_file()
    assert len(list((record / "trials").iterdir())) == 4
    assert "efficiency" in done.stderr
    assert "same numbers: yes" in done.stderr
    assert "epoch 0" not in done.stdout + done.stderr


def test_ctrl_c_stops_every_worker_and_leaves_a_readable_record(folder, typist):
    (folder / "endless.py").write_text(TRAIN.replace("range(options.epochs)", "iter(int, 1)"))
    begun = typist.begin(folder, "scale", "-n", "2", "--steps", "1000000", "endless.py")
    wait_for(lambda: any(folder.glob("paceline-runs/*/trials/*/steps.rank1.jsonl")))
    record = the_record(folder)
    [trial] = (record / "trials").iterdir()
    workers = [psutil.Process(worker.pid) for worker in read_run(trial).workers]
    assert len(workers) == 2
    begun.send_signal(signal.SIGINT)
    code, _, err = begun.end()
    assert code == 130
    assert "Traceback" not in err
    assert not [one for one in workers if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert read_run(record).outcome.interrupted
    assert read_run(trial).outcome.interrupted
    assert json.loads((record / "verdict.json").read_text())["interrupted"] is True


def test_doctor(paceline_):
    done = paceline_("doctor", "--json")
    document = json.loads(done.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["torch"]["ok"]
    assert "gloo" in checks["backends"]["found"]
    assert checks["ports"]["ok"]
    assert all(check["advice"] for check in checks.values() if not check["ok"])
    assert done.returncode == int(any(check["prevents"] and not check["ok"] for check in checks.values()))


def test_topo(paceline_, folder):
    done = paceline_("topo", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert document["packages"]
    assert document["limits"]["cpus"]
    (folder / "machine.txt").write_text(
        "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tSYS\tNV2\nGPU1\tSYS\t X \tPIX\nGPU2\tNV2\tPIX\t X \n"
    )
    done = paceline_("topo", "--from", "machine.txt", "--choose", "2", "--svg", "machine.svg")
    assert (done.returncode, done.stderr) == (0, "")
    assert "best 2: GPU0 GPU2" in done.stdout
    assert (folder / "machine.svg").read_text().startswith("<svg")


def test_a_time_line_names_the_parameters_of_each_bucket_and_when_it_was_summed(folder, paceline_) -> None:
    done = paceline_("run", "-n", "2", "--timeline", "trace.json", "train.py")
    assert done.returncode == 0, done.stderr
    assert "timeline: trace.json" in done.stderr
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    phases = {"forward", "backward", "communication", "optimizer", "paceline's check"}
    assert phases <= {event["name"] for event in spans}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bucket = [e for e in spans if e["pid"] == 0 and tracks[0, e["tid"]] == "bucket 0"]
    assert {event["name"] for event in bucket} == {"ready", "queued", "reduced"}
    assert "model.0.weight" in bucket[0]["args"]["parameters"]
    assert {event["args"]["step"] for event in bucket} == set(range(1, 8))
    assert any("waited for gradients of model." in event["name"] for event in spans)


def test_a_time_line_in_a_folder_that_is_not_there_is_refused_at_once(paceline_) -> None:
    done = paceline_("run", "-n", "2", "--timeline", "no/trace.json", "train.py")
    assert done.returncode == 2
    assert "mkdir -p no" in done.stderr
    assert "Traceback" not in done.stderr


def test_mods_change_a_run_and_not_the_script(folder, paceline_) -> None:
    plain = paceline_("run", "-n", "2", "train.py")
    changed = paceline_("run", "-n", "2", "--mod", "fused_optimizer", "--mod", "precision", "--json", "train.py")
    assert changed.returncode == 0, changed.stderr
    told = json.loads(changed.stdout)
    assert told["mods"] == ["fused_optimizer", "precision=bf16"]
    assert read_run(folder / told["record"]).mods == told["mods"]
    losses = [float(re.findall(r"loss (\S+)", text)[0]) for text in (plain.stdout, changed.stderr)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_mods_are_listed(paceline_) -> None:
    done = paceline_("mods", "--json")
    assert {"precision", "tf32", "channels_last"} <= {mod["name"] for mod in json.loads(done.stdout)["mods"]}
    done = paceline_("run", "--mod", "precision=bf8", "train.py")
    assert done.returncode == 2
    assert "--mod precision=bf16" in done.stderr


NOTHING_TO_MOD = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adamax(model.parameters())
for step in range(3):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.5f}")
"""
IDLE = {
    "resident": "no DataLoader of the script",
    "channels_last": "no model of the script has a 2-d convolution.",
    "fused_optimizer": "there is no fused version of Adamax.",
    "bn=local": "there is one worker.",
}
WITHOUT_GPU = {"tf32": "there is no GPU.", "cuda_graphs": "there is no GPU."}


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="names mods that need a GPU")
def test_run_says_which_mods_are_not_in_force(folder, paceline_):
    (folder / "train.py").write_text(NOTHING_TO_MOD)
    mods = [word for mod in [*IDLE, *WITHOUT_GPU, "precision=bf16"] for word in ("--mod", mod)]
    typed = paceline_("run", "-n", "1", "--json", *mods, "train.py")
    assert typed.returncode == 0, typed.stderr
    told = json.loads(typed.stdout)
    assert set(told["not_in_force"]) == {*IDLE, *WITHOUT_GPU}
    for mod, why in (IDLE | WITHOUT_GPU).items():
        text = told["not_in_force"][mod]
        assert text.startswith(f"--mod {mod} is not in force: ")
        assert why in text
        assert typed.stderr.count(text) == 2  # at once, and in the summary
    outcome = read_run(folder / told["record"]).outcome
    assert outcome is not None
    assert outcome.not_in_force == told["not_in_force"]
