"""What TensorBoard finds: event files read byte by byte, by a reader that shares nothing with the writer."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import Play
from slow_crc import masked_crc

from paceline.data.formats import crc32c, tfrecord
from paceline.errors import UsageError
from paceline.launch import Event, Notice, Progress
from paceline.launch.tensorboard import Board, prove_board, showing
from paceline.launch.tensorboard_events import encode
from paceline.record import Step, StepWriter, read_steps
from paceline.record.logged import Logged, logged_path
from paceline.record.phases import PHASES


def records(data: bytes) -> Iterator[bytes]:
    while data:
        [length] = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked_crc(data[:8]),)
        record, data = data[12 : 12 + length], data[12 + length :]
        assert len(record) == length
        assert struct.unpack("<I", data[:4]) == (masked_crc(record),)
        data = data[4:]
        yield record


def varint(data: bytes) -> tuple[int, bytes]:
    value = shift = 0
    while True:
        value |= (data[0] & 0x7F) << shift
        more, data = data[0] & 0x80, data[1:]
        if not more:
            return value, data
        shift += 7


def fields(data: bytes) -> list[tuple[int, object]]:
    found: list[tuple[int, object]] = []
    while data:
        key, data = varint(data)
        value: object
        match key & 7:
            case 0:
                value, data = varint(data)
            case 1:
                value, data = struct.unpack("<d", data[:8])[0], data[8:]
            case 2:
                size, data = varint(data)
                assert size <= len(data)
                value, data = data[:size], data[size:]
            case 5:
                value, data = struct.unpack("<f", data[:4])[0], data[4:]
            case other:
                raise AssertionError(f"wire type {other}")
        found.append((key >> 3, value))
    return found


def scalars(event: bytes) -> tuple[float, int, dict[str, float]]:
    """Wall time, step, and the values by tag."""
    (wall, at), (number, step), (summary, values) = fields(event)
    assert (wall, number, summary) == (1, 2, 5)
    found = {}
    for field, value in fields(values):
        (tag_field, tag), (value_field, number) = fields(value)
        assert (field, tag_field, value_field) == (1, 1, 2)
        found[tag.decode()] = number
    return at, step, found


def shown(folder: Path) -> list[tuple[float, int, dict[str, float]]]:
    [path] = folder.glob("*/*tfevents*")
    first, *rest = records(path.read_bytes())
    assert dict(fields(first))[3] == b"brain.Event:2"
    return [scalars(event) for event in rest]


def one_step(number: int, **other: object) -> Step:
    told = {"samples": 32, "total": 0.5, "data": 0.0625, "forward": 0.125, "backward": 0.125, "communication": 0.0625}
    told |= {"optimizer": 0.03125, "evaluation": 0.0625, "other": 0.03125, "loss": 1 / number, **other}
    return Step(step=number, at=1000.0 + number, **told)  # type: ignore[arg-type]


def write_steps(record: Path, *steps: Step) -> None:
    record.mkdir(exist_ok=True)
    writer = StepWriter(record / "steps.rank0.jsonl")
    for step in steps:
        writer.append(step)
    writer.close()


def test_a_record_is_shown_step_by_step(tmp_path: Path) -> None:
    write_steps(tmp_path / "a-run", one_step(1), one_step(300))
    Board(tmp_path / "board", tmp_path / "a-run").close()
    [path] = (tmp_path / "board").glob("*/*")
    assert path.parent.name == "a-run"  # what TensorBoard calls the run
    (at, step, first), (_, later, _) = shown(tmp_path / "board")
    assert (at, step, later) == (1001.0, 1, 300)
    split = {f"step_seconds/{part}": getattr(one_step(1), part) for part in PHASES}
    assert first == {"loss": 1.0, "samples_per_second": 32 / 0.4375, "step_seconds/total": 0.5, **split} | {
        "samples_per_second": pytest.approx(32 / 0.4375)
    }


def test_what_a_step_does_not_know_is_left_out(tmp_path: Path) -> None:
    unknown = one_step(1, loss=None, split=False, total=0.0, evaluation=0.0)
    diverged = one_step(2, loss=None, finite=False, noise=12.0)
    write_steps(tmp_path / "run", unknown, diverged, one_step(3, loss=1e300))
    Board(tmp_path / "board", tmp_path / "run").close()
    (_, _, first), (_, _, second), (_, _, third) = shown(tmp_path / "board")
    assert first == {"step_seconds/total": 0.0}
    assert math.isnan(second["loss"])
    assert second["noise_scale"] == 12.0
    assert third["loss"] == math.inf  # TensorBoard's numbers are of 32 bits


def test_numbers_that_the_script_logs_are_shown_too(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", one_step(1))
    calls = [Logged(step=1, at=5.0, numbers={"accuracy": 0.75, "größe": None})]
    logged_path(tmp_path / "run").write_bytes(b"".join(msgspec.json.encode(call) + b"\n" for call in calls))
    Board(tmp_path / "board", tmp_path / "run").close()
    at, step, found = shown(tmp_path / "board")[1]
    assert (at, step, found["logged/accuracy"]) == (5.0, 1, 0.75)
    assert math.isnan(found["logged/größe"])


def test_each_look_adds_what_is_new_and_a_torn_line_waits(tmp_path: Path) -> None:
    record, board = tmp_path / "run", Board(tmp_path / "board", tmp_path / "run")
    board.look()  # before there is a record
    assert shown(tmp_path / "board") == []
    write_steps(record, one_step(1))
    torn = msgspec.json.encode(one_step(2))
    with open(record / "steps.rank0.jsonl", "ab") as file:
        file.write(torn[:40])
    board.look()
    assert [step for _, step, _ in shown(tmp_path / "board")] == [1]
    with open(record / "steps.rank0.jsonl", "ab") as file:
        file.write(torn[40:] + b"\n")
    board.close()
    assert [step for _, step, _ in shown(tmp_path / "board")] == [1, 2]


def test_a_long_record_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launch.tensorboard.PIECE", 1000)
    write_steps(tmp_path / "run", *(one_step(number) for number in range(1, 51)))
    Board(tmp_path / "board", tmp_path / "run").close()
    assert [step for _, step, _ in shown(tmp_path / "board")] == list(range(1, 51))


@given(
    at=st.floats(allow_nan=False),
    step=st.integers(0, 2**63 - 1),
    values=st.dictionaries(st.text(), st.floats(width=32, allow_nan=False)),
)
def test_any_scalar_arrives_as_it_was(at: float, step: int, values: dict[str, float]) -> None:
    assert scalars(encode(at, step, values)) == (at, step, values)


@given(st.binary(max_size=200))
def test_frames_are_right(data: bytes) -> None:
    before, after = tfrecord.frame(data)
    assert list(records(before + data + after)) == [data]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--tensorboard .*file.* it is not a folder") as refused:
        prove_board(tmp_path / name)
    assert "--tensorboard DIR" in refused.value.advice
    prove_board(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_missing_package_is_named_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    crc32c.checksum.cache_clear()
    try:
        with pytest.raises(UsageError, match="need the package google-crc32c") as refused:
            prove_board(tmp_path)
        assert 'pip install "paceline[data]"' in refused.value.advice
    finally:
        crc32c.checksum.cache_clear()


@contextlib.contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """As on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_does_not_end_the_run_and_is_told_once(tmp_path: Path) -> None:
    told: list[Event] = []
    write_steps(tmp_path / "run", one_step(1), one_step(2))

    with showing(tmp_path / "board", tmp_path / "run", told.append) as on_event, no_file_over(100):
        on_event(Progress({0: one_step(2)}))
        on_event(Progress({0: one_step(2)}))
    (notice,) = (event for event in told if isinstance(event, Notice))
    assert "is incomplete, because a write failed: File too large" in notice.text
    assert len(told) == 3


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    told: list[Event] = []
    with showing(None, tmp_path / "run", told.append) as on_event:
        on_event(Progress({}))
    assert (told, os.listdir(tmp_path)) == ([Progress({})], [])


def test_a_run_in_progress_can_be_watched(play: Play, tmp_path: Path) -> None:
    """The script ends well only if its steps are in the event file while it still runs."""
    with showing(tmp_path / "board", tmp_path / "record", lambda _: None) as tell:
        launched = play(
            """
            import pathlib, sys, time
            import torch
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                loss = model(torch.ones(8, 4)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            end = time.monotonic() + 60
            while not any(b"loss" in path.read_bytes() for path in pathlib.Path(sys.argv[1]).glob("*/*")):
                assert time.monotonic() < end, "waited in vain"
                time.sleep(0.02)
            """,
            workers=1,
            arguments=(str(tmp_path / "board"),),
            on_event=lambda _, event: tell(event),
        )
    assert launched.outcome.exit_code == 0, launched.outcome.message
    steps = read_steps(launched.record, 0)
    assert [(step, values["loss"]) for _, step, values in shown(tmp_path / "board")] == [
        (step.step, pytest.approx(step.loss)) for step in steps
    ]
