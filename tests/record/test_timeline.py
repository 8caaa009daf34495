"""A time line can be opened in a trace viewer, whatever happened to the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.errors import RecordError
from paceline.record import Run, WorkerInfo, write_run
from paceline.record.schema import ClockOffset
from paceline.record.timeline import BLOCK, Span, TimelineWriter, on_one_clock, read_spans, write_trace


def trace(folder: Path) -> list[dict[str, Any]]:
    write_trace(folder, folder / "trace.json")
    return list(json.loads((folder / "trace.json").read_text())["traceEvents"])


def test_each_worker_is_a_process_and_each_track_a_line_of_its_own(tmp_path: Path) -> None:
    for rank in (0, 10, 2):
        writer = TimelineWriter(tmp_path, rank)
        writer.add("phases", "forward", 1.0, 2.0)
        writer.add("bucket 0", "queued", 1.5, 1.75, parameters=["a", "b"])
        writer.flush()
    events = trace(tmp_path)
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(rank, f"worker {rank}") for rank in (0, 2, 10)}
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 10]
    assert [(e["name"], e["tid"], e["dur"]) for e in spans] == [
        ("forward", 0, pytest.approx(1e6)),
        ("queued", 1, pytest.approx(0.25e6)),
    ]
    assert spans[1]["args"] == {"parameters": ["a", "b"]}
    assert spans[1]["ts"] - spans[0]["ts"] == pytest.approx(0.5e6, abs=1)
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0


def test_spans_are_in_the_file_before_the_run_ends(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path, 0)
    for number in range(BLOCK + 3):
        writer.add("phases", str(number), 0.0, 1.0)
    assert len(read_spans(tmp_path / "timeline.rank0.jsonl")) == BLOCK


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path, 0)
    writer.add("phases", "forward", 0.0, 1.0)
    writer.flush()
    path = tmp_path / "timeline.rank0.jsonl"
    path.write_bytes(path.read_bytes() + b'["phases","backw')
    assert len(read_spans(path)) == 1


def test_a_run_without_time_lines_gives_an_empty_trace(tmp_path: Path) -> None:
    assert trace(tmp_path) == []


def test_a_target_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        write_trace(tmp_path, tmp_path / "no" / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_spans_of_another_host_are_on_the_launchers_clock(tmp_path):
    clock = ClockOffset(offset=2.0, drift=0.5, error=0.0, at=100.0, readings=1)
    spans = [Span("phases", "forward", 102.0, 103.0), Span("phases", "backward", 104.0, 105.0)]
    moved = on_one_clock(spans, clock)
    assert [(span.start, span.end) for span in moved] == [(99.0, 100.0), (100.0, 101.0)]
    assert on_one_clock(spans, None) is spans
    workers = [WorkerInfo(rank=r, host="", pid=1, cores=[], threads=1, clock=clock if r else None) for r in range(2)]
    write_run(tmp_path, Run(paceline="", verb="run", script="", arguments=[], settings={}, workers=workers))
    for rank, start in ((0, 98.0), (1, 102.0)):
        line = msgspec.json.encode(Span("phases", "forward", start, start + 1)) + b"\n"
        (tmp_path / f"timeline.rank{rank}.jsonl").write_bytes(line)
    write_trace(tmp_path, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["ts"] for event in events if event["ph"] == "X"] == [0.0, 1e6]
