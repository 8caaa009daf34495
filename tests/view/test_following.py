"""What a browser is sent of a run in progress, and of a step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from view_records import SLOW, TRAIN, grow, make_live

from paceline.errors import RecordError
from paceline.record import Outcome, Step, read_run, write_run
from paceline.record.phases import CHECK
from paceline.record.timeline import TimelineWriter
from paceline.record.writer import StepWriter
from paceline.view.records.layout import KINDS, unpack
from paceline.view.records.library import Library
from paceline.view.records.spans import spans_of, steps_of
from paceline.view.server.follow import FileTail, Follower


def test_only_what_is_new_is_sent(tmp_path):
    folder = make_live(tmp_path / "now", steps=5)
    follower = Follower(Library(tmp_path), "now")
    first = follower.look()
    assert [step[0] for step in first["steps"]] == [1, 2, 3, 4, 5]
    assert [row[0] for row in first["ranks"]] == [0, 1]
    assert first["state"] == "running"
    assert follower.look() is None
    grow(folder, 6, 2)
    assert [step[0] for step in follower.look()["steps"]] == [6, 7]
    run = read_run(folder)
    run.outcome = Outcome(exit_code=3, seconds=1.0)
    write_run(folder, run)
    assert follower.look()["state"] == "failed"


def test_a_run_is_followed_before_its_workers_are_known(tmp_path, client_of):
    folder = make_live(tmp_path / "now", steps=2)
    run = read_run(folder)
    workers, run.workers = run.workers, []
    write_run(folder, run)
    client = client_of(tmp_path)
    assert client.get("/live/now").status_code == 200
    follower = Follower(Library(tmp_path), "now")
    assert follower.look()["state"] == "running"
    assert follower.look() is None
    run.workers = workers
    write_run(folder, run)
    assert [step[0] for step in follower.look()["steps"]] == [1, 2]


def test_the_live_page_of_a_run_that_has_ended_says_so(client):
    page = client.get(f"/live/{TRAIN}")
    assert page.status_code == 200
    assert "not in progress: succeeded" in page.text


def test_a_line_that_is_being_written_waits_for_its_end(tmp_path):
    path = tmp_path / "file"
    tail = FileTail(path)
    assert tail.take() == b""
    path.write_bytes(b"one\ntw")
    assert tail.take() == b"one\n"
    with open(path, "ab") as file:
        file.write(b"o\n")
    assert tail.take() == b"two\n"
    path.write_bytes(b"new\n")  # begun anew
    assert tail.take() == b"new\n"


def test_the_stream_ends_with_the_run(tmp_path, client_of):
    folder = make_live(tmp_path / "now", steps=3)
    run = read_run(folder)
    run.outcome = Outcome(exit_code=0, seconds=1.0)
    write_run(folder, run)
    answer = client_of(tmp_path).get("/follow/now")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line for line in answer.text.splitlines() if line.startswith("event: ")]
    assert events == ["event: steps", "event: end"]


def test_a_step_is_drawn_with_the_ranks_side_by_side(records):
    record = Library(records).open(TRAIN)
    assert steps_of(record) == [1, 2, 3]
    told = spans_of(record, 2)
    assert {track.rank for track in told.tracks} == {0, 1, 2, 3}
    assert min(told.start) >= 0
    by_rank = {}
    for track, start, name in zip(told.track, told.start, told.name, strict=True):
        if told.names[name] == "ProfilerStep#2":
            by_rank[told.tracks[track].rank] = start
    assert by_rank[SLOW] > by_rank[0]  # its first step took longer
    kinds = {told.names[name]: KINDS[kind] for name, kind in zip(told.name, told.kind, strict=True)}
    assert kinds["ncclDevKernel_AllReduce_Sum_f32_RING_LL"] == "communication"
    assert "train.py:41 item()" in kinds
    with pytest.raises(RecordError):
        spans_of(record, 17)


def test_rows_of_a_track_hold_one_another(records):
    told = spans_of(Library(records).open(TRAIN), 1)
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for track, depth, start, length in zip(told.track, told.depth, told.start, told.length, strict=True):
        rows.setdefault((track, depth), []).append((start, start + length))
    for spans in rows.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), "two events on one place"
    assert max(depth for _, depth in rows) >= 3


def test_only_the_longest_are_kept_where_there_are_too_many(records):
    record = Library(records).open(TRAIN)
    whole, part = spans_of(record, 1), spans_of(record, 1, most=40)
    events = [int((told.kind != KINDS.index("gap")).sum()) for told in (whole, part)]
    assert events[1] == 40
    assert part.left_out == events[0] - 40
    assert max(part.length) == max(whole.length)


def test_a_run_with_a_timeline_has_a_time_line(tmp_path, client_of):
    folder = make_live(tmp_path / "now", steps=3)
    record = Library(tmp_path).open("now")
    end = record.steps.frame["at"][1]
    for rank in range(2):
        writer = TimelineWriter(folder, rank)
        writer._zero = 0.0  # times below are of the wall
        writer.add("phases", "forward", end - 0.05, end - 0.04)
        writer.add("communication", "bucket 0", end - 0.03, end - 0.02)
        writer.flush()
    client = client_of(tmp_path)
    told = unpack(client.get("/spans/now?step=2").content)
    assert told["names"] == ["paceline.forward", "bucket 0"], "a phase is named as in a trace"
    assert len(told["tracks"]) == 4
    assert client.get("/timeline/now?step=2").status_code == 200


def test_the_time_line_of_a_step_begins_with_its_check(tmp_path):
    folder = make_live(tmp_path / "now", steps=3)
    end = Library(tmp_path).open("now").steps.frame["at"].max() + 10.0
    phases = dict.fromkeys(("data", "backward", "communication", "optimizer"), 0.0)
    writer = StepWriter(folder / "steps.rank0.jsonl")
    writer.append(Step(step=4, at=end, samples=8, total=1.0, forward=1.0, check=4.0, **phases))
    writer.close()
    timeline = TimelineWriter(folder, 0)
    timeline._zero = 0.0
    timeline.add("phases", CHECK, end - 5.0, end - 1.0)
    timeline.add("phases", "forward", end - 1.0, end)
    timeline.flush()
    told = spans_of(Library(tmp_path).open("now"), 4)
    assert told.names == [CHECK, "paceline.forward"]
    assert [round(length / 1e9) for length in told.length] == [4, 1]
    assert [(mark.start, round(mark.end / 1e9)) for mark in told.steps] == [(0, 5)]
