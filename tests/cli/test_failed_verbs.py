"""A verb that fails says so in one way: `failed: …`, then where its record is; with --quiet only why it has failed."""

from __future__ import annotations

import pytest

from paceline.record.schema import Outcome

REPORT = "Worker 0 on here failed:\nTraceback (most recent call last):\nValueError: no data\nIts log: log.rank0.txt"
VERBS = ("run", "profile", "scale", "sweep", "fit", "tune", "converge")


@pytest.fixture
def broken(launched, monkeypatch):
    monkeypatch.setattr("paceline.cli.profile.launch", launched)
    launched.steps = 0
    launched.outcome = Outcome(
        exit_code=1, seconds=1.0, failed_rank=0, cause="raised ValueError: no data", message=REPORT
    )
    return launched


@pytest.mark.parametrize("verb", VERBS)
def test_failed_then_the_record(broken, paceline_, verb):
    code, out, err = paceline_(verb, "train.py")
    assert code == 1
    said = [line for line in (err + out).splitlines() if line.startswith(("failed: ", "record: "))]
    assert [line.partition(":")[0] for line in said] == ["failed", "record"]
    assert "no data" in said[0], "the cause, in the line that says so"
    assert (err + out).count("Traceback") == 1


@pytest.mark.parametrize("verb", VERBS)
def test_quiet_prints_the_problem_only(broken, paceline_, verb):
    code, out, err = paceline_(verb, "--quiet", "train.py")
    assert code == 1
    assert out == ""
    assert [line for line in err.splitlines() if line.startswith("failed: ")]
    assert not [line for line in err.splitlines() if line.startswith("record: ")]
