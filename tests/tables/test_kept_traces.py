"""A large trace is parsed once: its columns stay beside the file, and every number of them is checked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from cuda_trace import Machine
from polars.testing import assert_frame_equal

from paceline.record import Run, WorkerInfo
from paceline.record.schema import ClockOffset
from paceline.tables.records import aligned
from paceline.tables.trace import kept
from paceline.tables.trace.columns import MOST_EVENTS, read_trace
from paceline.tables.trace.kept import ENDING, keep, read_kept
from paceline.tables.trace.parallel import read_together


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "WORTH_IT", 1)
    machine = Machine(1, 2)
    for _ in range(3):
        with machine.step(), machine.annotation("paceline.forward"), machine.op("aten::linear", 400_000):
            machine.work(900_000)
    path = tmp_path / "trace.rank1.json.gz"
    machine.write(path)
    return path


def copy_of(path: Path) -> Path:
    return path.with_name(path.name + ENDING)


def test_what_is_read_back_is_what_was_parsed(path):
    parsed = read_trace(path)
    assert read_kept(path, most=MOST_EVENTS) is None, "nothing was kept yet"
    assert keep(parsed)
    again = read_kept(path, most=MOST_EVENTS)
    assert again is not None
    assert_frame_equal(again.events, parsed.events)
    assert_frame_equal(again.memory, parsed.memory)
    assert (again.rank, again.world, again.base, again.threads) == (
        parsed.rank, parsed.world, parsed.base, parsed.threads
    )  # fmt: skip
    assert msgspec.json.encode(again.head) == msgspec.json.encode(parsed.head)
    assert [name for name in os.listdir(path.parent) if name.startswith(".")] == []


def test_the_copy_is_used_by_every_reader_and_no_more_than_allowed(path, monkeypatch):
    keep(read_trace(path))
    monkeypatch.setattr("paceline.tables.trace.parallel.read_traces", None)
    (trace,) = read_together([path])
    assert read_kept(path, most=trace.events.height + trace.memory.height) is not None
    assert read_kept(path, most=trace.events.height + trace.memory.height - 1) is None, "the parser refuses it in words"


def test_the_copy_of_another_trace_is_not_used(path, tmp_path):
    keep(read_trace(path))
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(path, other / path.name)
    shutil.copy(copy_of(path), other)
    assert read_kept(other / path.name, most=MOST_EVENTS) is not None, "a record may be copied"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert read_kept(path, most=MOST_EVENTS) is None


def test_small_traces_and_folders_that_cannot_be_written_have_none(path, monkeypatch):
    trace = read_trace(path)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "WORTH_IT", trace.events.height + 1)
        assert not keep(trace)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(kept.os, "open", refuse)
        assert not keep(trace)
    with monkeypatch.context() as patch:
        patch.setattr(kept.os, "geteuid", lambda: os.stat(path).st_uid + 1)
        assert not keep(trace), "the folder belongs to another account"
    assert not copy_of(path).exists()


def test_a_link_in_the_place_of_a_copy_is_neither_read_nor_written_through(path, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("dear")
    copy_of(path).symlink_to(mine)
    assert read_kept(path, most=MOST_EVENTS) is None
    assert keep(read_trace(path))
    assert mine.read_text() == "dear"
    assert not copy_of(path).is_symlink()


def changed(path: Path, **changes: object) -> None:
    """Changes the head of a copy."""
    data = copy_of(path).read_bytes()
    until = 8 + int.from_bytes(data[:8], "little")
    head = msgspec.json.encode(_merged(msgspec.json.decode(data[8:until]), changes))
    head += b" " * (-len(head) % 8)
    copy_of(path).write_bytes(len(head).to_bytes(8, "little") + head + data[until:])


def _merged(old: dict, new: dict) -> dict:
    return old | {key: _merged(old[key], value) if isinstance(value, dict) else value for key, value in new.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": {"start": {"count": 10**7}}},
        {"columns": {"start": {"count": -1}}},
        {"columns": {"start": {"count": 3}}},
        {"columns": {"memory.time": {"count": 10**7}}},
        {"head": {"texts": {"name": ["one"]}}},
        {"head": {"texts": {"name": ["same", "same"]}}},
        {"columns": {"kind": {"at": 10**9}}},
        {"columns": {"kind": {"at": -8}}},
        {"columns": {"kind": {"form": "O"}}},
        {"columns": {"start": {"zero": 2**62}}},
        {"columns": {"end": {"zero": -(2**40)}}},
        {"columns": {"end": {"zero": 2**70}}},
        {"columns": {"kind": {"zero": 100}}},
        {"columns": {"name": {"zero": -5}}},
        {"columns": 3},
        {"form": "another"},
        {"source": "another"},
        {"head": 3},
    ],
)
def test_a_damaged_copy_is_ignored(path, changes):
    keep(read_trace(path))
    changed(path)
    assert read_kept(path, most=MOST_EVENTS) is not None
    changed(path, **changes)
    assert read_kept(path, most=MOST_EVENTS) is None


def test_every_cut_of_a_copy_is_ignored(path):
    keep(read_trace(path))
    data = copy_of(path).read_bytes()
    for length in (0, 7, 8, 100, len(data) // 2, len(data) - 64):
        copy_of(path).write_bytes(data[:length])
        assert read_kept(path, most=MOST_EVENTS) is None, length


def test_a_trace_of_another_clock_is_moved_and_kept_as_it_was(path):
    raw = read_trace(path)
    middle = (raw.base + (raw.events["start"].min() + raw.events["end"].max()) // 2) / 1e9
    clock = ClockOffset(offset=2.0, drift=1e-3, error=1e-4, at=middle - 100.0, readings=9)
    workers = [WorkerInfo(rank=1, host="b", pid=1, cores=[], threads=1, clock=clock)]
    run = Run(paceline="", verb="profile", script="", arguments=[], settings={}, workers=workers)
    (moved,) = aligned([raw], run)
    assert raw.base - moved.base == moved.ahead == pytest.approx(2.1e9, abs=1e3)
    assert keep(moved)
    again = read_kept(path, most=MOST_EVENTS)
    assert again is not None
    assert (again.base, again.ahead) == (raw.base, 0), "a reader moves what it reads, once"
    (unmoved,) = aligned([raw], None)
    assert unmoved is raw
