"""A series that is told to end, between two trials or in one, says by which signal and leaves a readable record."""

from __future__ import annotations

import os
import signal

import pytest

from paceline.record import read_run

SERIES = [
    ("scale", "-n", "1,2", "train.py"),
    ("sweep", "train.py"),
    ("fit", "train.py"),
    ("tune", "train.py"),
    ("converge", "--emulate", "2", "train.py"),
]


class Signalled:
    """A `launch` that gets a signal before it would take it itself."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, *_: object, **__: object) -> None:
        os.kill(os.getpid(), self._number)
        raise AssertionError("the signal should have ended this")


@pytest.mark.parametrize("line", SERIES, ids=lambda line: line[0])
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_between_two_trials(launched, paceline_, tmp_path, monkeypatch, line, number, expected):
    for module in ("scale.series", "core.bench"):
        monkeypatch.setattr(f"paceline.trials.{module}.launch", Signalled(number))
    code, _, err = paceline_(*line)
    assert code == expected
    assert "Traceback" not in err
    [record] = (tmp_path / "paceline-runs").iterdir()
    outcome = read_run(record).outcome
    assert outcome is not None
    assert (outcome.interrupted, outcome.exit_code) == (True, expected)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("line", SERIES, ids=lambda line: line[0])
def test_sigterm_in_a_trial(launched, paceline_, tmp_path, line):
    launched.outcome.interrupted, launched.outcome.exit_code = True, 143
    assert paceline_(*line)[0] == 143
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.exit_code == 143
