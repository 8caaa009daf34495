"""What `paceline scale` prints."""

from __future__ import annotations

import json

import pytest

from paceline.launch import Notice, Output
from paceline.record import Step, read_run
from paceline.record.phases import PHASES


def test_the_table(launched, paceline_, tmp_path):
    launched.events = [Output(0, "stdout", b"epoch 1\n"), Notice("said once")]
    launched.speedups = {2: 1.25}
    code, out, err = paceline_("scale", "-n", "1,2", "--steps", "12", "train.py")
    assert code == 0
    assert [run.workers for run in launched.runs] == [1, 2, 2, 1, 1, 2], "a drift of the machine affects both alike"
    assert {run.steps for run in launched.runs} == {12}
    assert "epoch 1" not in out + err
    assert err.count("said once") == 1
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "samples/s" in err.splitlines()[-1], "progress goes to standard error, and results do not"
    for word in ("workers", "samples/s", "speed-up", "efficiency", "same numbers: yes", "62 %", "1.25×"):
        assert word in out
    for word in ("where the time of a step goes", "points lost", "2 workers reach 62 %", "largest cause is compute"):
        assert word in out
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert (record / "plots" / "scale.svg").is_file()
    assert json.loads((record / "verdict.json").read_text())["mode"] == "strong"
    assert read_run(record).verb == "scale"
    assert len(list((record / "trials").iterdir())) == 6


def test_the_document(launched, paceline_):
    launched.speedups = {2: 1.25}
    code, out, _ = paceline_("scale", "-n", "2,1", "--json", "train.py")
    document = json.loads(out)
    assert code == 0
    assert {"schema", "verb", "record", "paceline"} <= document.keys()
    assert (document["verb"], document["mode"]) == ("scale", "strong")
    assert [point["workers"] for point in document["points"]] == [1, 2]
    assert {"samples_per_s", "low", "high", "speedup", "efficiency", "step"} <= document["points"][0].keys()
    why = document["points"][1]["why"]
    assert why["seconds"].keys() == {"total", "compute", "communication", "imbalance", "input"}
    assert sum(why["lost"].values()) == pytest.approx(1 - document["points"][1]["efficiency"])
    assert why["sentence"].startswith("2 workers reach 62 %")
    assert document["same_numbers"]["checked"] is True
    assert document["same_numbers"]["max_difference"] == 0.0


def test_without_one_worker_there_is_no_efficiency(launched, paceline_):
    _, out, _ = paceline_("scale", "-n", "2,4", "train.py")
    assert "No efficiency: one worker was not measured. Speed-up is against 2 workers.\n" in out
    assert "→ Measure one worker as well: -n 1,2,4\n" in out
    assert "≈ 1.00×" in out
    assert "≈: no difference from 2 workers beyond the interval of the rounds." in out
    assert "points lost" not in out


def test_under_a_tie_no_cause_is_named(launched, paceline_):
    _, out, _ = paceline_("scale", "-n", "1,2", "train.py")
    assert "≈ 1.00×" in out
    assert "where the time of a step goes" in out
    assert "points lost" not in out
    assert "cause" not in out


def test_fewer_than_three_rounds_claim_nothing(launched, paceline_):
    launched.speedups = {2: 1.9}
    _, out, _ = paceline_("scale", "-n", "1,2", "--repeat", "2", "train.py")
    assert "≈ 1.90×" in out
    assert "≈: fewer than 3 rounds: no difference from 1 worker can be told from chance." in out
    assert "points lost" not in out


def test_weak(launched, paceline_):
    launched.speedups = {2: 0.9}
    _, out, _ = paceline_("scale", "-n", "1,2", "--weak", "train.py")
    assert {run.batch for run in launched.runs} == {"scale"}
    assert "weak scaling" in out
    assert "points lost" in out
    assert "same numbers: not checked" in out


def test_a_trial_that_fails(launched, paceline_):
    launched.outcome.exit_code, launched.outcome.message = 1, "ValueError: no such data"
    code, out, err = paceline_("scale", "-n", "1,2", "--json", "train.py")
    assert code == 1
    assert len(launched.runs) == 1
    assert "round 1, 1 worker: failed\nValueError: no such data" in err
    assert json.loads(out)["error"]["message"] == "1 worker, round 1: ValueError: no such data"


def test_an_interrupt_leaves_a_readable_record(launched, paceline_, tmp_path):
    launched.outcome.interrupted, launched.outcome.exit_code = True, 130
    code, out, _ = paceline_("scale", "-n", "1,2", "train.py")
    assert code == 130
    assert "interrupted" in out
    [record] = (tmp_path / "paceline-runs").iterdir()
    outcome = read_run(record).outcome
    assert outcome is not None
    assert outcome.interrupted
    assert json.loads((record / "verdict.json").read_text())["interrupted"] is True


def test_an_interrupt_between_two_trials(launched, paceline_, tmp_path):
    launched.raises = KeyboardInterrupt()
    code, _, _ = paceline_("scale", "-n", "1,2", "train.py")
    assert code == 130
    [record] = (tmp_path / "paceline-runs").iterdir()
    outcome = read_run(record).outcome
    assert outcome is not None
    assert outcome.interrupted


def test_steps_that_were_not_split_are_not_explained(launched, paceline_, monkeypatch):
    def unsplit(number: int, *, waits: float = 0.0) -> Step:
        return Step(step=number, at=1000.0, samples=64, total=0.1, split=False, **dict.fromkeys(PHASES, 0.0))

    monkeypatch.setattr("fake_launch.one_step", unsplit)
    code, out, err = paceline_("scale", "-n", "1,2", "--json", "train.py")
    assert code == 0
    assert "efficiency" in err
    assert "points lost" not in err
    assert [point["why"] for point in json.loads(out)["points"]] == [None, None]
