"""The command line without workers."""

from __future__ import annotations

import pytest
from fake_launch import FakeLaunch, FakeZygote

import paceline.launch
from paceline.__main__ import main


@pytest.fixture
def launched(monkeypatch, tmp_path) -> FakeLaunch:
    """In an empty folder with a train.py, on a machine with 4 cores' worth of workers."""
    fake = FakeLaunch()
    FakeZygote.started = []
    monkeypatch.setattr(paceline.launch, "Zygote", FakeZygote)
    monkeypatch.setattr("paceline.cli.run.launch", fake)
    monkeypatch.setattr("paceline.trials.scale.series.launch", fake)
    monkeypatch.setattr("paceline.trials.core.bench.launch", fake)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return fake


@pytest.fixture
def paceline_(capfdbinary):
    """Types a command line; returns (exit code, standard output, standard error)."""

    def type_it(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return type_it
