"""`paceline plan` as a person types it: a script is measured by real workers, and planned for a cluster."""

from __future__ import annotations

import json

from test_verbs import TRAIN

from paceline.plan.workload import read_workload


def test_a_script_is_measured_and_planned_in_one_command(typist, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    command = ["plan", "--steps", "20", "--cluster", "cpux4@10", "--json", "--measure", "train.py", "--epochs", "40"]
    done = typist.type(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["workers"] for row in document["rows"]] == [1, 2, 4]
    (record,) = (tmp_path / "paceline-runs").iterdir()
    assert document["record"] == str(record.relative_to(tmp_path))
    work = read_workload(record)
    assert [point.rows for point in work.points] == [5, 10, 20]
    assert work.gradients == 4 * (8 * 16 + 16 + 16 * 2 + 2)
    assert work.ready[-1][2] <= 1
    assert work.messages >= 1
    assert (record / "plots" / "plan.svg").is_file()
    assert (record / "verdict.json").is_file()


def test_a_script_that_fails_is_named_with_its_error(typist, tmp_path):
    (tmp_path / "train.py").write_text("raise ValueError('no data')")
    done = typist.type(tmp_path, "plan", "--measure", "train.py")
    assert done.returncode == 1
    assert "workers1: " in done.stderr
    assert "no data" in done.stderr
    assert "Traceback" not in done.stderr
