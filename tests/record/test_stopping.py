"""A record that cannot be written: told once where somebody listens, an error elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.errors import RecordError
from paceline.record import StepWriter, stopping
from paceline.record.logged import Logged
from paceline.record.logs import LogFile
from paceline.record.sharpness import RunSharpness, write_sharpness
from paceline.record.timeline import TimelineWriter

LINE = Logged(step=1, at=0.0, numbers={})


def full_file(folder: Path, name: str) -> Path:
    """A file on a full disk."""
    (folder / name).symlink_to("/dev/full")
    return folder / name


def test_writers_stop_and_tell_once(tmp_path: Path) -> None:
    told: list[RecordError] = []
    full_file(tmp_path, "timeline.rank0.jsonl")
    with stopping.listening(told.append):
        writer = StepWriter(full_file(tmp_path, "steps.rank0.jsonl"))
        timeline = TimelineWriter(tmp_path, 0)
        for _ in range(3):
            writer.append(LINE)
            timeline.add("phases", "forward", 0.0, 1.0)
            timeline.flush()
        writer.close()
        assert stopping.is_stopped()
        assert "No space left" in stopping.why()
    assert len(told) == 1
    assert "No space left" in told[0].message
    assert not stopping.is_stopped()


def test_where_nobody_listens_a_failed_write_is_an_error(tmp_path: Path) -> None:
    writer = StepWriter(full_file(tmp_path, "steps.rank0.jsonl"))
    with pytest.raises(RecordError, match="No space left"):
        writer.append(LINE)
    writer.close()


def test_the_runs_of_one_verb_tell_once_and_each_stops_for_itself(tmp_path: Path) -> None:
    told: list[str] = []
    with stopping.listening(lambda error: told.append("verb")):
        for trial in range(2):
            with stopping.listening(lambda error, trial=trial: told.append(f"trial {trial}")):  # type: ignore[misc]
                assert not stopping.is_stopped()
                stopping.stop(tmp_path, OSError(28, "No space left on device"))
                assert stopping.is_stopped()
        stopping.stop(tmp_path, OSError(28, "No space left on device"))
    assert told == ["trial 0"]


def test_a_print_does_not_raise_because_its_log_is_on_a_full_disk(tmp_path: Path) -> None:
    told: list[RecordError] = []
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with stopping.listening(told.append):
            log = LogFile(descriptor, tmp_path / "log.rank1.txt")
            assert log.write(b"hello\n") == 6
            assert log.write(b"again\n") == 6
            os.write(descriptor, b"what a child process prints\n")
    finally:
        os.close(descriptor)
    assert len(told) == 1


def test_a_sharpness_that_cannot_be_kept_is_told_too(tmp_path: Path) -> None:
    told: list[RecordError] = []
    full_file(tmp_path, ".sharpness.json.new")  # what is moved into its place
    with stopping.listening(told.append):
        write_sharpness(tmp_path, RunSharpness())
    assert len(told) == 1
