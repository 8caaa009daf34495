"""What made a record: the command as typed, the state of the code, packages, variables; and no secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from paceline.errors import UsageError
from paceline.record.about import origin
from paceline.record.about.labels import Labels, labels_of, read_labels, write_labels
from paceline.record.about.lock import hold, is_held
from paceline.record.about.origin import add_resumed, describe, look, packages, read_origin, that_matter, write_origin


@pytest.fixture
def repository(tmp_path):
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("config", "user.email", "a@b")
    git("config", "user.name", "a")
    (tmp_path / "train.py").write_text("print(1)\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path


def test_a_clean_tree_is_clean(repository):
    tree, changes = look(repository)
    assert (tree.root, tree.branch, tree.dirty, tree.diff, changes) == (str(repository), "main", False, "", b"")
    assert len(tree.commit) == 40


def test_changes_are_kept_for_git_apply(repository, monkeypatch):
    (repository / "train.py").write_text("print(2)\n")
    (repository / "new.py").touch()
    record = repository / "paceline-runs" / "one"
    record.mkdir(parents=True)
    (record / "run.json").touch()
    monkeypatch.chdir(repository)
    origin, changes = describe(["paceline", "run", "train.py"], {}, script="train.py", record=record)
    write_origin(record, origin, changes)
    told = read_origin(record)
    assert told == origin
    assert (told.git.dirty, told.git.changed, told.git.untracked) == (True, 1, ["new.py"])  # the records are not named
    kept = record / told.git.diff
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    subprocess.run(["git", "checkout", "-q", "train.py"], check=True)
    subprocess.run(["git", "apply", str(kept)], check=True)
    assert (repository / "train.py").read_text() == "print(2)\n"


def test_a_large_diff_is_cut_between_files(repository, monkeypatch):
    for name in ("train.py", "zzz.py"):
        (repository / name).write_text(name * 100)
    subprocess.run(["git", "-C", str(repository), "add", "."], check=True)
    monkeypatch.setattr(origin, "MOST", 1200)
    tree, changes = look(repository)
    assert tree.cut
    assert changes.count(b"diff --git") == 1
    assert len(changes) <= 1200


def test_outside_a_repository_there_is_none(tmp_path):
    assert look(tmp_path) == (None, b"")


def test_git_that_hangs_does_not_keep_a_run_waiting(repository, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "git"
    fake.write_text("#!/bin/sh\nexec sleep 1000\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(origin, "LIMIT", 0.1)
    assert look(repository) == (None, b"")


def test_variables_that_matter_without_secrets():
    told = that_matter(
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "HF_TOKEN": "hf_secret",
            "HF_HOME": "/data",
            "PACELINE_SECRET": "s",
            "PACELINE_RECORD": "runs",
            "NCCL_SOCKET_IFNAME": "eth0",
            "PYTHONPATH": "src",
            "HOME": "/home/a",
            "AWS_SECRET_ACCESS_KEY": "k",
            "TORCH_HOME": "https://me:word@host/x",
        }
    )
    assert told == {
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_HOME": "/data",
        "NCCL_SOCKET_IFNAME": "eth0",
        "PACELINE_RECORD": "runs",
        "PYTHONPATH": "src",
        "TORCH_HOME": "https://…@host/x",
    }


def test_the_command_is_kept_word_by_word_but_for_secret_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["paceline", "run", "--env", "WANDB_API_KEY=abc", "--env=A=1", "-m", "pkg.train", "--note", "a b", "--lr=1"]
    origin, _ = describe(words, {}, record=tmp_path / "r")
    assert origin.line == "paceline run --env WANDB_API_KEY=… --env=A=1 -m pkg.train --note 'a b' --lr=1".replace(
        "WANDB_API_KEY=…", "'WANDB_API_KEY=…'"
    )
    assert (origin.directory, origin.python) == (str(tmp_path), sys.executable)


def test_packages_have_versions():
    assert {"torch", "msgspec", "polars"} <= packages().keys()
    assert packages()["msgspec"][0].isdigit()


def test_a_resumed_record_knows_both_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_origin(tmp_path, describe(["paceline", "tune", "a.py"], {}, record=tmp_path)[0])
    add_resumed(tmp_path, ["paceline", "tune", "--resume", "x", "a.py"])
    assert read_origin(tmp_path).resumed == [["paceline", "tune", "--resume", "x", "a.py"]]


def test_labels_are_kept_and_changed(tmp_path):
    assert read_labels(tmp_path) == Labels()
    write_labels(tmp_path, labels_of("first try", ["a,b", "a"], "slow"))
    assert read_labels(tmp_path) == Labels(name="first try", tags=("a", "b"), note="slow")


@pytest.mark.parametrize("wrong", [{"name": "a/b"}, {"name": "a\nb"}, {"tags": ["a b"]}, {"note": "x" * 20_000}])
def test_labels_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(UsageError):
        labels_of(**wrong)


def test_a_lock_lasts_as_long_as_its_process(tmp_path):
    assert not is_held(tmp_path)
    here = hold(tmp_path)
    assert is_held(tmp_path)
    assert hold(tmp_path) is None
    os.close(here)
    assert not is_held(tmp_path)


def test_two_runs_of_different_code_differ_on_the_page_that_compares_them(tmp_path):
    from paceline.record import Run, write_run
    from paceline.record.about.origin import Origin, Tree
    from paceline.record.inside import Folder
    from paceline.view.pages.compare import differing
    from paceline.view.records.record import Opened

    opened = []
    for name, commit, torch in (("a", "1" * 40, "2.9"), ("b", "2" * 40, "2.9")):
        folder = tmp_path / name
        folder.mkdir()
        write_run(folder, Run(paceline="0", verb="run", script="t.py", arguments=[], settings={}))
        tree = Tree(root="/x", commit=commit, dirty=False)
        write_origin(folder, Origin(command=["paceline"], directory="/x", git=tree, packages={"torch": torch}))
        opened.append(Opened.of(name, Folder(folder)))
    assert differing(opened) == [("git commit", ["1" * 12, "2" * 12])]
