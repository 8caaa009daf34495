"""`paceline runs`: lists, filters, labels, deletes and prunes records; and the labels of new ones."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from paceline.record.about.labels import Labels, read_labels
from paceline.record.about.lock import hold
from paceline.record.about.origin import read_origin
from paceline.record.reader import read_run
from paceline.record.schema import Outcome
from paceline.record.writer import write_run


@pytest.fixture
def document(paceline_):
    def type_it(*arguments: str) -> dict:
        code, out, err = paceline_(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return type_it


@pytest.fixture
def three(launched, paceline_, tmp_path):
    """A run of 40 days ago, a failed one of 3 days ago and a new one, in this order."""
    folders = []
    for number, (days, code) in enumerate([(40, 0), (3, 1), (0, 0)]):
        launched.outcome = Outcome(exit_code=code, seconds=3.0, view="batch", message="it broke" if code else "")
        paceline_("run", "-n", "2", "train.py", "--lr", str(number))
        made = launched.records[-1].absolute()
        run = read_run(made)
        run.started = os.stat(made).st_mtime - days * 86400
        write_run(made, run)
        folder = made.with_name(f"2026-01-0{number + 1}T00-00-00-train")
        os.rename(made, folder)
        folders.append(folder)
    return folders


def names(told: dict) -> list[str]:
    return [run["record"].rpartition("/")[2][9:10] for run in told["runs"]]


@pytest.mark.parametrize(
    "typed",
    [
        (
            "run",
            "-n",
            "2",
            "--steps",
            "5",
            "--name",
            "one",
            "--tag",
            "a",
            "--tag",
            "b,c",
            "--note",
            "why",
            "train.py",
            "-x",
        ),
        ("scale", "-n", "1,2", "--repeat", "1", "--name", "one", "--tag", "a,b,c", "--note", "why", "train.py", "-x"),
    ],
)
def test_a_record_knows_the_command_as_typed_and_its_labels(launched, paceline_, tmp_path, typed):
    code, _, err = paceline_(*typed)
    assert code == 0, err
    [record] = (tmp_path / "paceline-runs").iterdir()
    origin = read_origin(record)
    assert origin.command == ["paceline", *typed]
    assert origin.directory == str(tmp_path)
    assert len(origin.script_sha256) == 64
    assert read_labels(record) == Labels(name="one", tags=("a", "b", "c"), note="why")


def test_a_module_is_shown_as_typed(launched, paceline_, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").touch()
    _, out, _ = paceline_("run", "-n", "2", "--json", "-m", "pkg.train", "--lr", "0.1")
    assert json.loads(out)["command"] == "paceline run -n 2 --json -m pkg.train --lr 0.1"


def test_a_label_that_cannot_be_used_leaves_no_record(launched, paceline_, tmp_path):
    code, _, err = paceline_("run", "--tag", "a b", "train.py")
    assert code == 2
    assert "--tag 'a b'" in err
    assert not (tmp_path / "paceline-runs").exists()


def test_the_list_and_its_filters(three, document, paceline_):
    told = document("runs")
    assert names(told) == ["3", "2", "1"]
    assert [run["status"] for run in told["runs"]] == ["succeeded", "failed", "succeeded"]
    assert told["runs"][0]["command"] == "paceline run -n 2 train.py --lr 2"
    assert told["runs"][0]["samples_per_s"] == pytest.approx(640)
    assert names(document("runs", "--status", "failed")) == ["2"]
    assert names(document("runs", "--newer", "7d")) == ["3", "2"]
    assert names(document("runs", "--older", "30d")) == ["1"]
    assert names(document("runs", "--verb", "scale")) == []
    assert names(document("runs", "--script", "trai*", "--limit", "1")) == ["3"]
    assert names(document("runs", "--text", "--lr 1")) == ["2"]
    _, out, _ = paceline_("runs")
    assert [line.split()[0][9:10] for line in out.splitlines()[1:4]] == ["3", "2", "1"]
    assert "640" in out


def test_labels_are_changed_afterwards(three, paceline_, document):
    paceline_("runs", "tag", "2026-01-01", "base", "slow")
    paceline_("runs", "tag", "--remove", "2026-01-01", "slow")
    paceline_("runs", "name", "2026-01-01", "first")
    paceline_("runs", "note", "first", "the one to beat")
    assert read_labels(three[0]) == Labels(name="first", tags=("base",), note="the one to beat")
    assert names(document("runs", "--tag", "base")) == ["1"]
    shown = document("runs", "show", "first")
    assert (shown["verb"], shown["run"]["verb"]) == ("runs show", "run")
    assert (shown["run"]["note"], shown["origin"]["command"][-1]) == ("the one to beat", "0")
    _, out, _ = paceline_("runs", "show", "first")
    assert "paceline run -n 2 train.py --lr 0" in out


def test_the_folder_may_be_named_before_or_after_the_subcommand(three, document, tmp_path):
    os.rename(tmp_path / "paceline-runs", tmp_path / "elsewhere")
    assert document("runs", "--record", "elsewhere")["total"] == 3
    before = document("runs", "--record", "elsewhere", "show", "last")["run"]
    assert document("runs", "show", "last", "--record", "elsewhere")["run"] == before


def test_several_records_or_none_are_refused(three, paceline_):
    code, _, err = paceline_("runs", "name", "train", "x")
    assert code == 2
    assert "several records" in err
    assert paceline_("runs", "delete", "absent", "--yes")[0] == 2


def test_nothing_is_deleted_without_a_word(three, paceline_):
    code, _, err = paceline_("runs", "delete", "last")
    assert code == 2
    assert "--yes" in err
    code, out, _ = paceline_("runs", "delete", "last", "--dry-run")
    assert code == 0
    assert "would be deleted: 1 record" in out
    assert all(folder.is_dir() for folder in three)
    assert paceline_("runs", "delete", "last", "--yes")[0] == 0
    assert [folder.is_dir() for folder in three] == [True, True, False]


def test_a_record_in_use_is_never_deleted(three, paceline_):
    lock = hold(three[2])
    try:
        code, _, err = paceline_("runs", "delete", "last", "--yes")
        assert code == 2
        assert "running" in err
        assert paceline_("runs", "prune", "--keep", "0", "--yes")[0] == 0
    finally:
        os.close(lock)
    assert [folder.is_dir() for folder in three] == [False, False, True]


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (["--older", "30d"], "23"),
        (["--keep", "1"], "3"),
        (["--status", "failed"], "13"),
        (["--status", "succeeded", "--keep", "1"], "23"),
        (["--larger", "1GB"], "123"),
        (["--larger", "1K"], ""),
        (["--to-size", "1GB"], "123"),
        (["--to-size", "1"], ""),
    ],
)
def test_pruning(three, paceline_, typed, left):
    code, _, err = paceline_("runs", "prune", *typed, "--yes")
    assert code == 0, err
    assert "".join(folder.name[9] for folder in three if folder.is_dir()) == left


def test_pruning_keeps_what_somebody_has_named_or_tagged(three, paceline_):
    paceline_("runs", "tag", "2026-01-01", "base")
    paceline_("runs", "prune", "--keep", "0", "--yes")
    assert [folder.is_dir() for folder in three] == [True, False, False]
    paceline_("runs", "prune", "--tag", "base", "--yes")
    assert not three[0].is_dir()


def test_prune_needs_a_condition(three, paceline_):
    code, _, err = paceline_("runs", "prune", "--yes")
    assert code == 2
    assert "--older 30d" in err


def test_only_records_are_deleted(three, paceline_, tmp_path):
    other = tmp_path / "elsewhere"
    shutil.copytree(three[0], other)
    (tmp_path / "paceline-runs" / "2026-01-09-link").symlink_to(other)
    (tmp_path / "paceline-runs" / "mine").mkdir()
    paceline_("runs", "prune", "--keep", "0", "--yes")
    assert other.is_dir()
    assert (tmp_path / "paceline-runs" / "mine").is_dir()


def test_a_missing_folder_says_what_to_type(launched, paceline_):
    code, _, err = paceline_("runs")
    assert code == 2
    assert "paceline run" in err


def test_a_list_for_another_program_has_the_width_that_this_asks_for(three, paceline_, monkeypatch):
    assert max(map(len, paceline_("runs")[1].splitlines()[:-1])) > 64  # nothing is cut
    monkeypatch.setenv("COLUMNS", "64")
    _, out, _ = paceline_("runs")
    *table, _ = out.splitlines()  # the last line names the folder
    assert max(map(len, table)) <= 64
    assert all(folder.name in out for folder in three)
