"""A worker takes over rank 0's files: what it wrote to its own layer becomes real, also where it is still written."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from paceline.script.output import takeover
from paceline.script.output.overlay import Overlay


@pytest.fixture(params=["same file system", "another file system"])
def layer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Overlay:
    if request.param == "another file system":
        plain = os.replace

        def across(source: str, target: str) -> None:
            if not str(source).endswith(".paceline"):
                raise OSError(18, "Invalid cross-device link")
            plain(source, target)

        monkeypatch.setattr(takeover.os, "replace", across)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "work").mkdir()
    return Overlay(str(tmp_path / "scratch"))


def test_written_renamed_and_removed_files(layer: Overlay, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "old.txt").write_text("old")
    (work / "kept.txt").write_text("kept")
    with layer.open(str(work / "new.tmp"), "w") as file:
        file.write("new")
    layer.rename(str(work / "new.tmp"), str(work / "new.txt"))
    layer.mkdir(str(work / "folder"), 0o777)
    with layer.open(str(work / "folder" / "inside.txt"), "w") as file:
        file.write("inside")
    layer.remove(str(work / "old.txt"))
    takeover.make_real(layer)
    found = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert found == {"kept.txt": "kept", "new.txt": "new", "folder/inside.txt": "inside"}


@pytest.mark.parametrize("mode", ["w", "a"])
def test_an_open_file_is_written_on(layer: Overlay, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "work" / "log.txt"
    with layer.open(str(path), mode) as file:
        file.write("before\n")
        file.flush()
        takeover.make_real(layer)
        assert path.read_text() == "before\n"
        file.write("after\n")
    assert path.read_text() == "before\nafter\n"


@pytest.mark.parametrize("layer", ["same file system"], indirect=True)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_an_open_database_is_written_on(layer: Overlay, tmp_path: Path, journal: str) -> None:
    """In the middle of a transaction."""
    path = tmp_path / "work" / "metrics.db"
    database = sqlite3.connect(layer.changed(str(path), "a"))
    database.execute(f"pragma journal_mode={journal}")
    database.execute("create table metrics (step integer primary key)")
    database.execute("insert into metrics values (1)")
    takeover.make_real(layer)
    database.execute("insert into metrics values (2)")
    database.commit()
    database.close()
    with contextlib.closing(sqlite3.connect(path)) as found:
        assert found.execute("select step from metrics").fetchall() == [(1,), (2,)]
