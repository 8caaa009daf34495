"""Who may read what the verbs leave behind: the owner, and others with --share-record."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

VERBS = ("run", "profile", "scale", "sweep", "fit", "tune", "converge", "bandwidth")
SCALE = ("scale", "-n", "1,2", "--repeat", "1")


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Of all that the verb made, the folders of trials apart, which the fake launch makes."""
    [record] = root.iterdir()
    found = [record, *record.rglob("*")]
    mine = [path for path in found if path.parent.name != "trials"]
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in mine}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_writes_a_record_can_share_it(paceline_, verb):
    _, out, _ = paceline_(verb, "--help")
    assert "--share-record" in out


def test_a_series_is_private_with_its_verdict_and_plots(launched, paceline_, tmp_path):
    code, _, _ = paceline_(*SCALE, "train.py")
    assert code == 0
    found = modes(tmp_path / "paceline-runs")
    assert any(name.endswith("plots/scale.svg") for name in found)
    assert any(name.endswith("verdict.json") for name in found)
    shared = {name: oct(mode) for name, mode in found.items() if mode & 0o077 and "/trials" not in name}
    assert shared == {}
    assert not any(run.share_record for run in launched.runs)


def test_a_series_is_shared_where_that_was_asked_for(launched, paceline_, tmp_path):
    code, _, _ = paceline_(*SCALE, "--share-record", "train.py")
    assert code == 0
    assert all(run.share_record for run in launched.runs)
    assert set(modes(tmp_path / "paceline-runs").values()) == {0o755, 0o644}


def test_a_series_that_is_resumed_becomes_private(launched, paceline_, tmp_path):
    assert paceline_("sweep", "--repeat", "1", "--seed", "1", "train.py")[0] == 0
    [record] = (tmp_path / "paceline-runs").iterdir()
    for path in (record, *record.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert paceline_("sweep", "--repeat", "1", "--resume", str(record), "train.py")[0] == 0
    assert not any(path.stat().st_mode & 0o077 for path in (record, *record.rglob("*")))


def test_a_report_is_its_owners_alone_unless_it_was_there_before(launched, paceline_, tmp_path):
    paceline_("run", "-n", "2", "train.py")
    assert paceline_("view", "--export", "report.html")[0] == 0
    assert stat.S_IMODE(Path("report.html").stat().st_mode) == 0o600
    Path("report.html").chmod(0o644)
    assert paceline_("view", "--export", "report.html")[0] == 0
    assert stat.S_IMODE(Path("report.html").stat().st_mode) == 0o644
