"""A record that can no longer be written: the disk fills up, the folder is gone. The script goes on to its own end."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typist import Typist

from paceline.record import read_run, read_steps

# Makes 60 steps, writes files of its own, and ends with code 3. After step 20, `fault` happens once.
TRAIN = """
import os, subprocess, sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20:
        {fault}
    if step % 20 == 19:
        print("x" * 9000, file=sys.stderr)
        torch.save(model.state_dict(), "model.pt")
        torch.load("model.pt")
        with open("losses.csv", "a") as file:
            print(loss.item(), file=file)
print("lines:", len(open("losses.csv").readlines()))
sys.exit(3)
"""
FILL = 'subprocess.run(["dd", "if=/dev/zero", "of=small/filler", "bs=4096"], stderr=subprocess.DEVNULL)'
GO_ON = "Recording stops here"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, in the folder `small`."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def test_a_script_goes_on_when_the_disk_of_its_record_fills_up(typist: Typist, tmp_path: Path, small: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault=FILL))
    typed = typist.type(tmp_path, "run", "-n", "2", "--record", "small", "--timeline", "time.json", "train.py")
    assert typed.returncode == 3
    assert "lines: 3" in typed.stdout
    assert typed.stderr.count(GO_ON) == 1
    assert typed.stderr.count("No space left") == 1
    assert "60 steps" in typed.stderr
    assert "Traceback" not in typed.stderr
    (record,) = (path for path in small.iterdir() if path.is_dir())
    outcome = read_run(record).outcome
    assert outcome is not None, "there was room kept for how the run has ended"
    assert (outcome.exit_code, outcome.steps) == (3, 60)
    assert "No space left" in outcome.unrecorded
    assert 0 < len(read_steps(record, 0)) < 60


def test_a_script_goes_on_when_its_record_is_removed(typist: Typist, tmp_path: Path) -> None:
    gone = 'import shutil; subprocess.run(["rm", "-rf", "paceline-runs"])'
    (tmp_path / "train.py").write_text(TRAIN.format(fault=gone))
    typed = typist.type(tmp_path, "run", "-n", "2", "--json", "train.py")
    assert typed.returncode == 3
    told = json.loads(typed.stdout)
    assert (told["steps"], told["exit_code"]) == (60, 3)
    assert "lines: 3" in typed.stderr
    assert typed.stderr.count(GO_ON) == 1
    assert not (tmp_path / "paceline-runs").exists()


def test_a_record_that_finds_no_room_at_the_start_is_kept_elsewhere(
    typist: Typist, tmp_path: Path, small: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault="pass"))
    fill(small)
    typed = typist.type(tmp_path, "run", "-n", "1", "--json", "--record", "small", "train.py")
    assert typed.returncode == 3
    assert typed.stderr.count("No space left") == 1
    record = Path(json.loads(typed.stdout)["record"])
    assert str(record) in typed.stderr
    assert len(read_steps(record, 0)) == 60
    subprocess.run(["rm", "-r", record.parent], check=True)


def test_a_series_of_trials_goes_on_elsewhere(typist: Typist, tmp_path: Path, small: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault=FILL))
    typed = typist.type(
        tmp_path, "scale", "-n", "1", "--repeat", "2", "--steps", "40", "--json", "--record", "small", "train.py"
    )
    assert typed.returncode == 0, typed.stderr
    assert typed.stderr.count("No space left") == 1
    (point,) = json.loads(typed.stdout)["points"]
    assert point["samples_per_s"] > 0
    (kept,) = {line.split()[-2] for line in typed.stderr.splitlines() if line.endswith("instead.")}
    assert len(list(Path(kept).iterdir())) == 2
    subprocess.run(["rm", "-r", kept], check=True)


@pytest.mark.parametrize("code", [0, 3])
def test_a_profile_that_loses_its_trace_says_so(typist: Typist, tmp_path: Path, small: Path, code: int) -> None:
    text = TRAIN.format(fault=FILL).replace("step == 20", "step == 2").replace("sys.exit(3)", f"sys.exit({code})")
    (tmp_path / "train.py").write_text(text)
    typed = typist.type(tmp_path, "profile", "-n", "1", "--record", "small", "--to-the-end", "train.py")
    assert "lines: 3" in typed.stderr, "the script ran to its end"
    assert typed.stderr.count("No space left") == 1
    assert typed.stderr.count("There is no profile: the trace could not be written.") == 1
    assert "warm-up" not in typed.stderr, "the script was not too short"
    assert "Traceback" not in typed.stderr
    assert typed.returncode == (code or 1), "what was asked for was not done"


def test_a_tune_goes_on_elsewhere(typist: Typist, tmp_path: Path, small: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault=FILL).replace("sys.exit(3)", ""))
    options = ("--budget", "60s", "--only", "threads=1", "--json", "--record", "small")
    typed = typist.type(tmp_path, "tune", *options, "train.py")
    assert typed.returncode == 0, typed.stderr
    assert json.loads(typed.stdout)["baseline"]["samples_per_s"] > 0
    assert typed.stderr.count("No space left") == 1
    assert "Traceback" not in typed.stderr
    (kept,) = {line.split()[-2] for line in typed.stderr.splitlines() if line.endswith("instead.")}
    subprocess.run(["rm", "-r", kept], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that may not be written, in the folder `fixed`."""
    folder = tmp_path / "fixed"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(
    ("verb", "options", "says"),
    [
        ("run", ("-n", "2"), "lines: 3"),
        ("profile", ("-n", "1"), "where a traced step"),
        ("scale", ("-n", "1", "--repeat", "1", "--steps", "20"), "samples/s"),
        ("tune", ("--budget", "60s", "--only", "threads=1"), "samples/s"),
    ],
)
def test_a_folder_that_may_not_be_written_is_no_obstacle(
    typist: Typist, tmp_path: Path, read_only: Path, verb: str, options: tuple[str, ...], says: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault="pass").replace("sys.exit(3)", ""))
    typed = typist.type(tmp_path, verb, *options, "--record", "fixed", "train.py")
    assert typed.returncode == 0, typed.stderr
    assert typed.stderr.count("Read-only file system") == 1
    assert "Traceback" not in typed.stderr
    assert says in typed.stdout
    (kept,) = {word for word in typed.stderr.split() if "/paceline-runs-" in word and word.count("/") > 2}
    assert (Path(kept) / "run.json").exists()
    subprocess.run(["rm", "-r", Path(kept).parent], check=True)


SAVES = """
import subprocess
import torch, paceline

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = paceline.Elastic(model, optimizer)
for step in range(12):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5:
        {fault}
    state.commit()
print("trained", step)
"""


def test_a_state_that_cannot_be_saved_does_not_end_the_training(typist: Typist, tmp_path: Path, small: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES.format(fault=FILL))
    typed = typist.type(tmp_path, "run", "-n", "2", "--save-every", "2", "--save-to", "small/state", "train.py")
    assert typed.returncode == 0, typed.stderr
    assert "trained 11" in typed.stdout
    assert typed.stderr.count("The state was not saved") == 1
    assert (small / "state" / "checkpoint.json").exists(), "the state before is kept"
