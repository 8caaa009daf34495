"""`--track wandb|mlflow`: each step's metrics beside those of the script. The libraries are small stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typist import Typist

WANDB = """
import json, types
run = None
class Run:
    def __init__(self, name): self.name, self.row, self.step = name, {}, 0
    def log(self, values, step=None, commit=None):
        assert step is None or step >= self.step
        self.row |= values
        if commit is not False:
            with open("rows.jsonl", "a") as file:
                print(json.dumps([self.name, self.row]), file=file)
            self.row, self.step = {}, self.step + 1
    def finish(self): self.log({}) if self.row else None
def setup(): return types.SimpleNamespace(settings=types.SimpleNamespace(project=None, mode="online"))
def init(project=None, name=None, reinit=None, **_):
    global run
    made = Run(name or "script")
    if reinit != "create_new": run = made
    return made
"""
MLFLOW = """
import json, threading, types
from mlflow import entities
environment_variables = types.SimpleNamespace()
_active, _uri = threading.local(), "sqlite:///x"
def get_tracking_uri(): return _uri
def set_tracking_uri(uri): pass
def start_run():
    _active.run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="script"))
def active_run(): return getattr(_active, "run", None)
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None): pass
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): return name
    def create_run(self, experiment, run_name):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=experiment + " " + run_name))
    def log_batch(self, run, metrics=()):
        if run == "broken": raise OSError("the server is gone")
        with open("rows.jsonl", "a") as file:
            for metric in metrics:
                print(json.dumps([run, {metric.key: metric.value}]), file=file)
    def set_terminated(self, run): self.log_batch(run, [entities.Metric("ended", 1, 0, 0)])
"""
METRIC = """
class Metric:
    def __init__(self, key, value, timestamp, step): self.key, self.value, self.step = key, value, step
"""
TRAIN = """
import time
import torch

{begin}
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = model(torch.ones(4, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)
    {log}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text(MLFLOW)
    (tmp_path / "mlflow" / "entities.py").write_text(METRIC)
    return tmp_path


def rows(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in (folder / "rows.jsonl").read_text().splitlines()]  # type: ignore[misc]


def test_our_metrics_are_in_the_rows_of_the_scripts_wandb_run(typist: Typist, folder: Path) -> None:
    log = "if step % 2: run.log({'mine': step})"
    (folder / "train.py").write_text(TRAIN.format(begin="import wandb; run = wandb.init()", log=log))
    typed = typist.type(folder, "run", "-n", "2", "--track", "wandb", "train.py")
    assert typed.returncode == 0, typed.stderr
    found = rows(folder)
    assert [values["mine"] for _, values in found if "mine" in values] == [1, 3, 5, 7], "the script's rows are its own"
    assert {name for name, _ in found} == {"script"}
    tracked = [values for _, values in found if "paceline/step" in values]
    assert len(tracked) >= 3
    assert all(values["paceline/step_seconds/total"] > 0 for values in tracked)


def test_a_script_without_a_tracker_gets_a_run_of_its_own(typist: Typist, folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN.format(begin="", log=""))
    typed = typist.type(folder, "run", "-n", "2", "--track", "wandb", "--track", "mlflow", "train.py")
    assert typed.returncode == 0, typed.stderr
    (record,) = (folder / "paceline-runs").iterdir()
    found = rows(folder)
    losses = {
        name: [values["paceline/loss"] for n, values in found if n == name and "paceline/loss" in values]
        for name in {name for name, _ in found}
    }
    assert losses.keys() == {record.name, f"train {record.name}"}
    assert all(len(values) == 8 for values in losses.values())
    assert (f"train {record.name}", {"ended": 1}) in found


def test_our_metrics_go_to_the_scripts_mlflow_run(typist: Typist, folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN.format(begin="import mlflow; mlflow.start_run()", log=""))
    typed = typist.type(folder, "run", "-n", "2", "--track", "mlflow", "train.py")
    assert typed.returncode == 0, typed.stderr
    found = rows(folder)
    assert {name for name, _ in found} == {"script"}
    assert sum("paceline/samples_per_second" in values for _, values in found) == 8


def test_a_tracker_that_fails_does_not_end_the_run(typist: Typist, folder: Path) -> None:
    begin = "import mlflow; mlflow.start_run(); mlflow.active_run().info.run_id = 'broken'"
    (folder / "train.py").write_text(TRAIN.format(begin=begin, log="") + "print('trained')\n")
    typed = typist.type(folder, "run", "-n", "1", "--track", "mlflow", "train.py")
    assert typed.returncode == 0
    assert "trained" in typed.stdout
    assert typed.stderr.count("--track mlflow: OSError: the server is gone. The run goes on without it.") == 1


def test_a_tracker_that_is_not_there_is_told_before_anything_starts(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('never')")
    for name, said in (("wand", "--track wandb"), ("mlflow", "pip install mlflow")):
        typed = typist.type(tmp_path, "run", "--track", name, "train.py")
        assert typed.returncode == 2
        assert said in typed.stderr
    assert not (tmp_path / "paceline-runs").exists()
