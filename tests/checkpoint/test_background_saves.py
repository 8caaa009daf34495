"""Asynchronous saves: training goes on, nothing is lost, errors are heard."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
import paceline.checkpoint
from paceline.checkpoint import manifest, safetensors_file
from paceline.errors import CheckpointError


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Background writes wait until it is set."""
    event, plain = threading.Event(), safetensors_file.Shards.close

    def close(self: Any) -> Any:
        assert event.wait(60)
        return plain(self)

    monkeypatch.setattr(safetensors_file.Shards, "close", close)
    yield event
    event.set()
    paceline.checkpoint.wait()


def test_what_is_saved_is_the_model_of_that_moment(tmp_path: Path, gate: threading.Event) -> None:
    model = nn.Linear(3, 3)
    weight = model.weight.detach().clone()
    paceline.save(tmp_path / "ck", model, step=1, asynchronous=True)
    model.weight.data.zero_()  # training goes on
    with pytest.raises(CheckpointError, match="first save did not finish"):
        manifest.read(tmp_path / "ck")
    gate.set()
    paceline.checkpoint.wait()
    other = nn.Linear(3, 3)
    paceline.load(tmp_path / "ck", other)
    assert torch.equal(other.weight, weight)


def test_a_second_save_waits_for_the_first(tmp_path: Path, gate: threading.Event) -> None:
    paceline.save(tmp_path / "ck", nn.Linear(3, 3), step=1, asynchronous=True)
    second = threading.Thread(target=paceline.save, args=(tmp_path / "ck", nn.Linear(3, 3)), kwargs={"step": 2})
    second.start()
    assert second.is_alive()
    gate.set()
    second.join()
    assert paceline.load(tmp_path / "ck").step == 2


def test_load_waits_for_the_save_in_flight(tmp_path: Path, gate: threading.Event) -> None:
    paceline.save(tmp_path / "ck", nn.Linear(3, 3), step=1, asynchronous=True)
    gate.set()
    assert paceline.load(tmp_path / "ck").step == 1


def test_an_error_is_raised_by_the_next_call_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("paceline.checkpoint.safetensors_file.os.fsync", full)
        paceline.save(tmp_path / "ck", nn.Linear(3, 3), asynchronous=True)
        with pytest.raises(CheckpointError, match=r"asynchronous save failed.*No space left"):
            paceline.checkpoint.wait()
    paceline.checkpoint.wait()
    paceline.save(tmp_path / "ck", nn.Linear(3, 3), step=2, asynchronous=True)
    paceline.checkpoint.wait()
    assert paceline.load(tmp_path / "ck").step == 2


ENDS = """
import os, sys, paceline
from torch import nn
from paceline.checkpoint import manifest

if os.fork():  # importing torch takes longer than the rest: one import, and two processes that end
    os.wait()
    paceline.save(sys.argv[1], nn.Linear(500, 500), step=3, asynchronous=True)
else:
    def full(*_):
        raise OSError(28, "No space left on device", "checkpoint.json")
    manifest.write = full
    paceline.save(sys.argv[1], nn.Linear(5, 5), asynchronous=True)
"""


@pytest.mark.slow
def test_a_save_in_flight_is_finished_when_the_process_ends_and_its_error_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path / "ck")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert paceline.load(tmp_path / "ck").step == 3
    assert "paceline: The asynchronous save failed: checkpoint.json: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr
