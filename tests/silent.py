"""Runs functions in a process whose files go to a scratch folder, and in plain Python, to compare what they saw."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool import Pool, alone
from staged import staged

from paceline.comm.group import Group
from paceline.script.output.rank0 import Voice

_in_force: list[Any] = []  # the stage and the voice of this process, as long as it lives


def install(group: Group, scratch: Path) -> None:
    context = staged(group)
    voice = Voice(context.__enter__(), scratch)
    _in_force.extend([context, voice])
    voice.install()


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, Path]]:
    """A process whose files go to a scratch folder, and that folder."""
    scratch = tmp_path_factory.mktemp("scratch")
    with alone(1) as pool:
        pool.run(install, scratch)
        yield pool, scratch


def populate(folder: Path) -> None:
    """The real files at the start."""
    (folder / "data" / "sub").mkdir(parents=True)
    (folder / "data" / "a.txt").write_text("a")
    (folder / "data" / "sub" / "b.txt").write_text("bb")
    (folder / "old.txt").write_text("old")


def content(folder: Path) -> dict[str, bytes | str]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else "/" for p in sorted(folder.rglob("*"))}


def run_there(scenario: Callable[[], Any], folder: Path) -> Any:
    home = os.getcwd()
    os.chdir(folder)
    try:
        return scenario()
    finally:
        os.chdir(home)


def run_silently(group: Group, scenario: Callable[[], Any], folder: Path, began: float) -> tuple[Any, str]:
    """What it gave, or how it failed: the process lives on for the next scenario."""
    _in_force[1].overlay.began = began
    try:
        return run_there(scenario, folder), ""
    except Exception:
        return None, traceback.format_exc()


def the_run_begins(folder: Path) -> float:
    """A moment after all that is there: the disk's clock goes in small steps, and what comes next is in a later one."""
    last = max((path.lstat().st_ctime for path in folder.rglob("*")), default=0.0)
    probe = folder.parent / "probe"
    while True:
        probe.touch()
        if (now := probe.stat().st_ctime) > last:
            probe.unlink()
            return now


def in_silence(silent: tuple[Pool, Path], scenario: Callable[[], Any], folder: Path, began: float = 0.0) -> Any:
    ((found, failure),) = silent[0].run(run_silently, scenario, folder, began or the_run_begins(folder))
    assert not failure, failure
    return found


def check(silent: tuple[Pool, Path], tmp_path: Path, scenario: Callable[[], Any]) -> None:
    plain, real = tmp_path / "plain", tmp_path / "real"
    for folder in (plain, real):
        populate(folder)
    before = content(real)
    expected = run_there(scenario, plain)
    found = in_silence(silent, scenario, real)
    assert found == expected
    assert content(real) == before, f"the real files are rank 0's: {sorted(set(content(real)) - set(before))}"
