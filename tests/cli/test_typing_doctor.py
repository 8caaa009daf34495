"""What `paceline doctor` prints."""

from __future__ import annotations

import json

import pytest

from paceline.doctor.checks import Check

WELL = Check(name="python", ok=True, found="3.12.1")
WARNING = Check(name="threads", ok=False, found="OMP_NUM_THREADS=0", advice="unset OMP_NUM_THREADS")
STOP = Check(name="torch", ok=False, found="no torch", advice="pip install torch", prevents=True)


@pytest.mark.parametrize(
    ("checks", "code", "says"),
    [
        ([WELL], 0, "All checks passed"),
        ([WELL, WARNING], 0, "A run can start"),
        ([WARNING, STOP], 1, "cannot start"),
    ],
)
def test_the_table(paceline_, monkeypatch, checks, code, says):
    monkeypatch.setattr("paceline.cli.doctor.examine", lambda records: checks)
    found, out, err = paceline_("doctor")
    assert (found, err) == (code, "")
    assert says in out
    for check in checks:
        assert check.found in out
        assert check.advice in out


def test_the_document(paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.doctor.examine", lambda records: [WELL, STOP])
    code, out, _ = paceline_("doctor", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["verb"] == "doctor"
    assert document["checks"][1] == {
        "name": "torch",
        "ok": False,
        "found": "no torch",
        "advice": "pip install torch",
        "prevents": True,
    }
