"""A checkpoint that is not as it was written is refused, with the name of the file; a killed save costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline.checkpoint import manifest
from paceline.errors import CheckpointError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    paceline.save(tmp_path / "ck", nn.Linear(20, 20), step=1)
    return tmp_path / "ck"


def tensors(folder: Path) -> Path:
    (file,) = folder.glob("tensors-*/*.safetensors")
    return file


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("which", ["checkpoint.json", "tensors"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(saved: Path, which: str, damage: Callable[[Path], None]) -> None:
    path = tensors(saved) if which == "tensors" else saved / which
    damage(path)
    model = nn.Linear(20, 20)
    before = model.weight.clone()
    with pytest.raises(CheckpointError) as error:
        paceline.load(saved, model)
    assert which in error.value.message
    assert torch.equal(model.weight, before)


def test_a_newer_format_is_refused(saved: Path) -> None:
    path = saved / "checkpoint.json"
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2', 1))
    with pytest.raises(CheckpointError, match="format version 2"):
        paceline.load(saved)


def test_a_checkpoint_that_names_files_elsewhere_is_refused(saved: Path) -> None:
    content = manifest.read(saved)
    content.files = [
        manifest.StoredFile(path=f"tensors-{'0' * 12}/../../../etc/passwd", bytes=file.bytes, crc32=file.crc32)
        for file in content.files
    ]
    manifest.write(saved, content)
    with pytest.raises(CheckpointError, match="not one of a checkpoint"):
        paceline.load(saved)


@pytest.mark.parametrize("name", ["nothing", "file", "folder"])
def test_what_is_no_checkpoint_is_said_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=f"{name} (does not exist|is a file|has no checkpoint.json)"):
        paceline.load(tmp_path / name)


def test_a_full_disk_leaves_the_old_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "x.safetensors")

    monkeypatch.setattr("paceline.checkpoint.safetensors_file.os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        paceline.save(saved, nn.Linear(20, 20), step=2)
    monkeypatch.undo()
    assert paceline.load(saved).step == 1
    assert len(list(saved.glob("tensors-*"))) == 1
    paceline.save(saved, nn.Linear(20, 20), step=2)


def test_two_processes_do_not_write_to_one_path(saved: Path) -> None:
    from paceline.checkpoint.save import Draft

    draft = Draft(saved)
    with pytest.raises(CheckpointError, match="being written by another process"):
        paceline.save(saved, nn.Linear(20, 20))
    draft.abandon()
    paceline.save(saved, nn.Linear(20, 20))


SAVES = """
import os, random, signal, sys, time, torch, paceline
from torch import nn

root, times = sys.argv[1], int(sys.argv[2])
chance = random.Random(times)
for number in range(times):  # a child process each, which has imported torch already
    later = number % 2 == 1
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        model = nn.Linear(300, 300)
        for step in range(10**9):
            model.weight.data.fill_(step)
            paceline.save(f"{root}/{number}", model, step=step, asynchronous=later)
            os.write(into, b"%d " % step)
    os.close(into)
    said = b""
    while said.count(b" ") < 2:
        said += os.read(out, 100)
    time.sleep(chance.random() * 0.02)  # the moment of the kill; whichever it is must do
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(out, 100):
        said += more
    os.close(out)
    print(said.split()[-1].decode())
"""


@pytest.mark.parametrize("times", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_a_save_that_is_killed_leaves_a_whole_checkpoint(tmp_path: Path, times: int) -> None:
    command = [sys.executable, "-c", SAVES, str(tmp_path), str(times)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for number, last in enumerate(said):
        folder, model = tmp_path / str(number), nn.Linear(300, 300)
        step = paceline.load(folder, model).step
        assert step is not None
        assert step >= int(last) - number % 2  # save() had returned; or, asynchronous, had waited for the one before
        assert torch.equal(model.weight, torch.full((300, 300), float(step)))
        paceline.save(folder, model, step=-1)  # what was left behind does not disturb
        assert len(list(folder.glob("tensors-*"))) == 1
    assert len(said) == times


def test_the_pointer_is_one_json_document(saved: Path) -> None:
    content = json.loads((saved / "checkpoint.json").read_text())
    assert content["content"]["tensors"]["model/weight"]["shape"] == [20, 20]
