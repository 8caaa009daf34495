"""A run's temporary folder goes with the run, or with the next one if it was killed; a living run's stays."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paceline.launch.scratch import hold, remove_dead, scratch_folder

# Holds a folder, says so, and waits to be killed.
RUN = """
import sys, pathlib
from paceline.launch.scratch import scratch_folder
with scratch_folder(pathlib.Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folders = tmp_path / "tmp"
    folders.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders))
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    return folders


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record with scratch files."""
    record = tmp_path / "record"
    (record / "scratch" / "rank1").mkdir(parents=True)
    (record / "run.json").touch()
    return record


def die_with(record: Path, *, holding: bool = False) -> tuple[str, int]:
    """A run that is killed; its folder, and a descriptor that another process of it still holds."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(record)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        folder = run.stdout.readline().strip()
        held = hold(folder) if holding else -1
        assert remove_dead() is None, "it lives"
        run.kill()
    return folder, held


def test_a_run_takes_its_folder_away(folders: Path, record: Path) -> None:
    with scratch_folder(record) as folder:
        assert Path(folder).parent == folders
        assert remove_dead() is None
    assert not list(folders.iterdir())


def test_a_dead_runs_folder_and_scratch_files_are_removed_and_told_of(folders: Path, record: Path) -> None:
    folder, _ = die_with(record)
    assert Path(folder).exists()
    removed = remove_dead()
    assert removed is not None
    assert removed.notice == f"Removed the temporary files of a run that was killed: {folder}"
    assert not Path(folder).exists()
    assert os.listdir(record) == ["run.json"]
    assert remove_dead() is None


def test_a_run_of_which_somebody_lives_is_left_alone(folders: Path, record: Path) -> None:
    folder, held = die_with(record, holding=True)
    assert remove_dead() is None
    assert Path(folder).exists()
    os.close(held)
    assert remove_dead() is not None


def test_what_is_no_runs_and_links_are_left_alone(folders: Path, record: Path, tmp_path: Path) -> None:
    (folders / "pl-something").mkdir()
    (folders / "pl-link").symlink_to(record)
    (record / "owner").write_text(str(record))
    (folders / "pl-far").mkdir()
    (folders / "pl-far" / "owner").symlink_to(record / "owner")
    assert remove_dead() is None
    assert len(list(folders.iterdir())) == 3
    # A dead run's word for its record is not believed where there is no record.
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "scratch").mkdir(parents=True)
    die_with(elsewhere)
    assert remove_dead() is not None
    assert (elsewhere / "scratch").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs to give a folder to another user")
def test_another_users_folder_is_left_alone(folders: Path, record: Path) -> None:
    folder, _ = die_with(record)
    os.chown(folder, 54321, 54321)
    assert remove_dead() is None
    assert Path(folder).exists()
