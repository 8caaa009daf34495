"""A record is its owner's alone, whatever the umask is, unless it was asked for otherwise."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import RecordError
from paceline.record import Run, StepWriter, new_folder, prepare, read_run, write_run
from paceline.record import private as modes
from paceline.record.logs import open_log
from paceline.record.noise import Noise
from paceline.record.private import create, keep_private, make_folder, write_file
from paceline.record.sharpness import RunSharpness, write_sharpness
from paceline.record.timeline import TimelineWriter
from paceline.record.writer import write_tuning


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run_of(folder: Path) -> None:
    write_run(folder, Run(paceline="0", verb="run", script="train.py", arguments=[], settings={}))


def fill(folder: Path) -> list[Path]:
    """Everything that workers and the launcher write."""
    run_of(folder)
    os.close(open_log(folder, 1))
    writer = StepWriter(folder / "steps.rank1.jsonl")
    writer.append(Noise(step=1, small=1, large=2, of_small=1.0, of_large=1.0))
    writer.close()
    TimelineWriter(folder, 1)._writer.close()
    write_tuning(folder, {})
    write_sharpness(folder, RunSharpness())
    make_folder(folder / "plots")
    write_file(folder / "plots" / "scale.svg", b"<svg/>")
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_new_record_is_its_owners_alone(tmp_path, umask):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o755)
    folder = new_folder(tmp_path / "runs", "train.py")
    assert mode(folder) == 0o700
    prepare(folder)
    assert mode(folder / "scratch") & 0o077 == 0
    files = fill(folder)
    assert len(files) == 8
    assert {mode(file) for file in files} == {0o600}
    assert mode(folder / "plots") & 0o077 == 0


def test_a_trial_is_its_owners_alone_and_so_is_the_folder_of_trials(tmp_path, usual_umask):
    folder = new_folder(tmp_path, "train.py")
    prepare(folder / "trials" / "one")
    assert mode(folder / "trials") == mode(folder / "trials" / "one") == 0o700


@pytest.mark.parametrize(
    ("masked", "folders", "files"), [(0o022, 0o755, 0o644), (0o027, 0o750, 0o640), (0o077, 0o700, 0o600)]
)
def test_a_record_is_shared_as_far_as_the_umask_allows(tmp_path, masked, folders, files):
    before = os.umask(masked)
    try:
        folder = new_folder(tmp_path, "train.py", share=True)
        prepare(folder, share=True)
        prepare(folder / "trials" / "one", share=True)
        made = fill(folder)
    finally:
        os.umask(before)
    assert {mode(path) for path in (folder, folder / "plots", folder / "trials", folder / "trials" / "one")} == {
        folders
    }
    assert {mode(path) for path in made} == {files}
    assert mode(folder / "scratch") == 0o700


def test_a_record_that_was_there_becomes_private_with_all_that_is_in_it(tmp_path, usual_umask):
    folder = tmp_path / "old"
    (folder / "trials" / "one").mkdir(parents=True)
    run_of(folder)
    run_of(folder / "trials" / "one")
    for path in (folder, folder / "trials", *folder.rglob("run.json")):
        path.chmod(0o755 if path.is_dir() else 0o664)
    outside = tmp_path / "outside.txt"
    outside.write_text("not of the record")
    outside.chmod(0o644)
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    prepare(folder)
    assert mode(folder) == mode(folder / "trials") == 0o700
    assert {mode(path) for path in folder.rglob("run.json")} == {0o600}
    assert mode(outside) == 0o644


def test_what_lies_in_a_folder_that_is_no_record_keeps_its_rights(tmp_path, usual_umask):
    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "train.py").chmod(0o644)
    prepare(tmp_path)
    assert mode(tmp_path) == 0o700
    assert mode(tmp_path / "train.py") == 0o644


def test_a_file_that_others_could_read_becomes_private_when_it_is_written(tmp_path, usual_umask):
    folder = new_folder(tmp_path, "train.py")
    (folder / "log.rank0.txt").write_text("before\n")
    (folder / "log.rank0.txt").chmod(0o644)
    os.close(open_log(folder, 0))
    assert mode(folder / "log.rank0.txt") == 0o600
    assert (folder / "log.rank0.txt").read_text() == "before\n"


def test_a_device_that_stands_for_a_file_keeps_its_rights(tmp_path):
    before = mode(Path("/dev/null"))
    folder = new_folder(tmp_path, "train.py")
    (folder / "log.rank0.txt").symlink_to("/dev/null")
    os.close(create(folder / "log.rank0.txt", append=True))
    assert mode(Path("/dev/null")) == before


def test_a_disk_without_rights_is_told(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(modes, "fchmod", lambda descriptor, mode: None)
    with pytest.raises(RecordError, match="cannot be kept from other accounts") as caught:
        keep_private(tmp_path)
    assert "--share-record" in caught.value.advice


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from paceline.record import Run, prepare, write_run
from paceline.record.logs import open_log
from paceline.record.private import reserving, opened

folder = Path(sys.argv[1])
prepare(folder)
with reserving():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    try:
        while True:
            os.dup(1)
    except OSError:
        pass
    for number in range(20):
        with opened(folder / "devices.jsonl", append=True) as file:
            file.write(b"line\\n")
        write_run(folder, Run(paceline=str(number), verb="run", script="train.py", arguments=[], settings={}))
    os.write(open_log(folder, 0), b"a line")
    print("written")
"""


def test_a_process_without_descriptors_writes_its_record(tmp_path):
    line = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path / "record")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.stdout == "written\n", done.stderr
    assert read_run(tmp_path / "record").paceline == "19"
    assert (tmp_path / "record" / "devices.jsonl").read_text().count("line\n") == 20
    assert (tmp_path / "record" / "log.rank0.txt").read_text() == "a line"
