"""A record can be read whatever happened to the run that wrote it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paceline.errors import RecordError
from paceline.record import (
    SCHEMA,
    Outcome,
    Run,
    Step,
    StepWriter,
    last_step,
    new_folder,
    prepare,
    read_run,
    read_steps,
    write_run,
)
from paceline.record.folder import RESERVE, release
from paceline.record.phases import PHASES
from paceline.record.scalars import scalars


def a_step(number: int) -> Step:
    return Step(
        step=number,
        at=1.5,
        samples=64,
        total=0.5,
        data=0.1,
        forward=0.1,
        backward=0.1,
        communication=0.1,
        optimizer=0.1,
    )


def a_run() -> Run:
    return Run(paceline="0", verb="run", script="train.py", arguments=["--lr", "1"], settings={"workers": 2})


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "paceline-test", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_new_folder_has_room_for_the_beginning_of_a_record(full_disk: Path) -> None:
    """On a disk with hardly enough for the first check, the run ended at its second one instead of going elsewhere."""
    filling = full_disk / "filling"
    filling.write_bytes(bytes(60 << 10))
    subprocess.run(["mount", "-o", "remount,size=128k", full_disk], check=True)
    with pytest.raises(RecordError, match="cannot be written"):
        new_folder(full_disk, "train.py")
    assert [path.name for path in full_disk.iterdir()] == ["filling"]


def test_steps_come_back_as_they_were_written(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path / "steps.rank1.jsonl")
    steps = [a_step(number) for number in range(3)]
    for number, step in enumerate(steps):
        writer.append(step)
        assert read_steps(tmp_path, 1) == steps[: number + 1], "a step is in the file when append returns"
        assert last_step(tmp_path, 1) == step
    writer.close()
    writer.close()


def test_scalars_leave_out_what_was_not_measured():
    own = msgspec.structs.replace(a_step(1), samples=0, split=False)
    assert scalars(a_step(1))["samples_per_second"] == 128
    assert not {"samples_per_second", "step_seconds/forward"} & scalars(own).keys()


def test_a_writer_goes_on_where_a_file_ends(tmp_path: Path) -> None:
    for number in range(2):
        writer = StepWriter(tmp_path / "steps.rank0.jsonl")
        writer.append(a_step(number))
        writer.close()
    assert [step.step for step in read_steps(tmp_path, 0)] == [0, 1]


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_left_out(tmp_path: Path, kept: int) -> None:
    line = msgspec.json.encode(a_step(0))
    (tmp_path / "steps.rank0.jsonl").write_bytes(line + b"\n" + line[:kept])
    assert read_steps(tmp_path, 0) == [a_step(0)]
    assert last_step(tmp_path, 0) == a_step(0)


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    line = msgspec.json.encode(a_step(0))
    (tmp_path / "steps.rank0.jsonl").write_bytes(line + b"\n" + line[:9] + b"\n" + line + b"\n")
    with pytest.raises(RecordError, match="line 2"):
        read_steps(tmp_path, 0)


def test_an_empty_file_and_a_missing_file_hold_no_steps(tmp_path: Path) -> None:
    (tmp_path / "steps.rank0.jsonl").touch()
    assert read_steps(tmp_path, 0) == []
    assert read_steps(tmp_path, 1) == []
    assert last_step(tmp_path, 0) is last_step(tmp_path, 1) is None


def test_steps_of_a_newer_paceline_with_more_fields_are_read(tmp_path: Path) -> None:
    line = msgspec.json.encode({**msgspec.to_builtins(a_step(4)), "joules": 3})
    (tmp_path / "steps.rank0.jsonl").write_bytes(line + b"\n")
    assert read_steps(tmp_path, 0) == [a_step(4)]


def test_a_run_comes_back_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    run = a_run()
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run
    run.outcome = Outcome(exit_code=0, seconds=1.0)
    write_run(tmp_path, run)
    assert read_run(tmp_path).outcome == run.outcome
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_newer_schema_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(f'{{"schema": {SCHEMA + 1}, "who": "knows"}}')
    with pytest.raises(RecordError, match=f"schema {SCHEMA + 1}") as caught:
        read_run(tmp_path)
    assert "upgrade" in caught.value.advice


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
def test_a_damaged_run_json_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match=re.escape(str(tmp_path))):
        read_run(tmp_path)


def test_a_folder_that_is_no_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record"):
        read_run(tmp_path / "nowhere")


def test_folders_are_named_after_time_and_script_and_never_used_twice(tmp_path: Path) -> None:
    names = [new_folder(tmp_path / "runs", "some/where/train me.py").name for _ in range(3)]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-train-me(-\d)?", name) for name in names), names


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(RecordError, match="cannot be written") as caught:
        new_folder(tmp_path / "runs", "train.py")
    assert "--record" in caught.value.advice
    with pytest.raises(RecordError, match="cannot be written"):
        prepare(tmp_path / "runs")


def test_a_folder_that_may_not_be_written_is_an_error() -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        new_folder(Path("/proc"), "train.py")


def test_a_full_disk_is_found_before_anything_starts(full_disk: Path) -> None:
    try:
        (full_disk / "filler").write_bytes(b"x" * 70000)
    except OSError:
        pass
    with pytest.raises(RecordError, match="No space left") as caught:
        prepare(full_disk / "record")
    assert "space" in caught.value.advice


def test_a_disk_that_fills_up_is_an_error_and_the_record_stays_readable(full_disk: Path) -> None:
    write_run(full_disk, a_run())
    writer = StepWriter(full_disk / "steps.rank0.jsonl")
    written = 0

    def fill_up() -> None:
        nonlocal written
        while True:
            writer.append(a_step(written))
            written += 1

    with pytest.raises(RecordError, match="No space left"):
        fill_up()
    writer.close()
    assert len(read_steps(full_disk, 0)) == written
    with pytest.raises(RecordError, match="No space left"):
        write_run(full_disk, a_run())
    assert read_run(full_disk) == a_run()


def test_preparing_a_folder_again_takes_out_the_run_before(tmp_path: Path) -> None:
    for name in ("log.rank0.txt", "steps.rank0.jsonl", "notes.txt"):
        (tmp_path / name).touch()
    prepare(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "scratch", RESERVE}
    release(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "scratch"}


def test_a_step_has_a_field_for_each_phase_in_the_order_of_the_phases() -> None:
    fields = [field for field in Step.__struct_fields__ if field in PHASES]
    assert tuple(fields) == PHASES


@pytest.mark.parametrize("there", [False, True])
def test_a_record_on_a_full_disk_leaves_no_folder_behind(full_disk: Path, there: bool) -> None:
    full = full_disk / "full"
    full.write_bytes(b"x" * 8192)
    folder = full_disk / "record"
    if there:
        folder.mkdir(mode=0o700)
    with pytest.raises(RecordError, match="No space left on device"):
        prepare(folder)
    assert {*full_disk.rglob("*")} == {full, *[folder] * there}
    with pytest.raises(RecordError, match="No space left on device"):
        new_folder(full_disk, "train.py")
    assert {*full_disk.rglob("*")} == {full, *[folder] * there}
