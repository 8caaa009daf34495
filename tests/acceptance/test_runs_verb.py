"""Records of real runs: what made them is known, on pages and in JSON; a running one is not deleted."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from paceline.record.about.labels import read_labels
from paceline.record.about.origin import read_origin
from paceline.view.pages import dashboard
from paceline.view.records.library import Library

TRAIN = """
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
"""
WAIT = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A repository with a package, one file of which was changed."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").write_text("# before\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    (tmp_path / "pkg" / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_run_of_a_module_knows_its_command_and_its_code(folder, typist):
    words = ["run", "-n", "2", "--env", "MY_TOKEN=s3cr3t", "--tag", "base", "--json", "-m", "pkg.train", "--lr", "1"]
    ended = typist.type(folder, *words)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    line = "paceline run -n 2 --env 'MY_TOKEN=…' --tag base --json -m pkg.train --lr 1"
    assert told["command"] == line
    record = folder / told["record"]
    assert record.name.endswith("-pkg.train")
    origin = read_origin(record)
    assert (origin.line, origin.directory) == (line, str(folder))
    assert origin.git.dirty
    assert "+model = nn.Linear(4, 2)" in (record / "changes.diff").read_text()
    assert read_labels(record).tags == ("base",)
    assert all(b"s3cr3t" not in path.read_bytes() for path in record.rglob("*.json"))
    library = Library(record.parent)
    page = dashboard.build(library.open(record.name), {})
    assert (page.lead, page.lead_is_command) == (line, True)
    listed = json.loads(typist.type(folder, "runs", "--tag", "base", "--json").stdout)
    [run] = listed["runs"]
    assert (run["command"], run["samples_per_s"]) == (line, told["samples_per_s"])


def test_a_running_run_is_not_deleted(folder, typist):
    (folder / "wait.py").write_text(WAIT)
    run = typist.begin(folder, "run", "wait.py")
    assert run.stdout.readline() == "here\n"
    for typed in (("delete", "last", "--yes"), ("prune", "--keep", "0", "--yes")):
        typist.type(folder, "runs", *typed)
    [record] = (folder / "paceline-runs").iterdir()
    run.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert (record / "run.json").is_file()
    assert typist.type(folder, "runs", "delete", "last", "--yes").returncode == 0
    assert not record.exists()
