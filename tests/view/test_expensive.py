"""Records made to be expensive: a page gives up in time, says what was too large and what to type, is cheap at the
second look, and keeps no other page waiting."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from view_records import TRAIN, make_run, trace

from paceline.errors import TraceError
from paceline.tables.trace import columns, intervals
from paceline.tables.trace.columns import read_trace
from paceline.tables.trace.steps import phases
from paceline.tables.trace.time_limit import PIECE, go_on, paced, within
from paceline.view.records import record as one_record
from paceline.view.records import spans
from paceline.view.records.library import Library
from paceline.view.records.limits import ViewLimits

TRACED = ("timeline", "ops", "op-types", "kernels", "waits", "memory", "devices")
pytestmark = pytest.mark.timeout(300)


def event(name: str, start: float, length: float, *, cat: str = "cpu_op", thread: int = 1, **args: object) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args}


def write_trace(path, events: list[dict]) -> None:
    step = event("ProfilerStep#1", 0, 10 * len(events) + 10, cat="user_annotation")
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [step, *events]}).encode(), 1))


def nested(count: int, name: str, cat: str) -> list[dict]:
    return [event(name.format(number), 1 + number, 2 * (count - number), cat=cat) for number in range(count)]


@pytest.fixture
def library(tmp_path):
    make_run(tmp_path / TRAIN, steps=5, ranks=1, traced=True)
    make_run(tmp_path / "bad", steps=5, ranks=1)
    return tmp_path


def test_the_work_for_nested_marks_does_not_grow_with_their_depth(library, monkeypatch):
    """Each level had its own pass over all marks: 20,000 levels took a minute a page."""
    counted = 0
    plain = intervals.Spans.of.__func__

    def of(cls, starts, ends):
        nonlocal counted
        counted += 1
        return plain(cls, starts, ends)

    monkeypatch.setattr(intervals.Spans, "of", classmethod(of))
    work = []
    for depth in (5, 500):
        path = library / "bad" / "trace.rank0.json.gz"
        write_trace(path, nested(depth, "paceline.forward", "user_annotation"))
        found = phases(read_trace(path))
        assert found["forward"].length == 2 * depth * 1000
        work.append(counted)
        counted = 0
    assert work[1] <= work[0] + 5


def test_a_moment_belongs_to_the_innermost_mark(tmp_path):
    path = tmp_path / "trace.json.gz"
    marks = [(1, 10, "forward"), (3, 4, "communication"), (4, 1, "data"), (7, 0, "data"), (11, 5, "backward")]
    write_trace(path, [event(f"paceline.{name}", at, long, cat="user_annotation") for at, long, name in marks])
    found = {name: spans.length / 1000 for name, spans in phases(read_trace(path)).items()}
    assert found == {
        "data": 1, "forward": 6, "communication": 3, "backward": 5, "optimizer": 0, "evaluation": 0, "other": 45,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "cat"),
    [("paceline.forward", "user_annotation"), ("aten::op", "cpu_op"), ("nn.Module: Layer_{}", "python_function")],
)
def test_a_deeply_nested_trace_has_all_its_pages(library, client_of, name, cat):
    write_trace(library / "bad" / "trace.rank0.json.gz", nested(20_000, name, cat))
    client = client_of(library)
    for page in TRACED:
        assert client.get(f"/{page}/bad").status_code == 200, page
    assert client.get("/spans/bad?step=1").status_code == 200


def test_paths_of_modules_that_are_nested_too_deeply_are_told(library, client_of, monkeypatch):
    monkeypatch.setattr("paceline.tables.modules.LONGEST", 1000, raising=False)
    write_trace(library / "bad" / "trace.rank0.json.gz", nested(100, "nn.Module: Layer_{}", "python_function"))
    answer = client_of(library).get("/waits/bad")
    assert answer.status_code == 200
    assert "nested too deeply" in answer.text
    assert "Lines that wait" in answer.text


def test_many_devices_are_refused_and_many_threads_are_not_all_drawn(library, client_of):
    path = library / "bad" / "trace.rank0.json.gz"
    write_trace(path, [event("k", 1 + n, 1, cat="kernel", device=n, stream=n) for n in range(300)])
    answer = client_of(library).get("/ops/bad")
    assert answer.status_code == 422
    assert "300" in answer.text
    assert "paceline profile --steps" in answer.text
    write_trace(path, [event("aten::a", 1 + n, 1, thread=n) for n in range(900)])  # the step is on thread 1
    record = Library(library).open("bad")
    drawn = spans.spans_of(record, 1)
    assert len(drawn.tracks) == 200
    assert drawn.left_out == 700


def test_too_many_names_are_refused(library, monkeypatch, tmp_path):
    monkeypatch.setattr(columns, "MOST_NAMES", 50, raising=False)
    path = tmp_path / "trace.json.gz"
    write_trace(path, nested(60, "op {}", "cpu_op"))
    with pytest.raises(TraceError, match="different names"):
        read_trace(path)


def test_a_page_gives_up_in_time_and_remembers_it(library, client_of, monkeypatch):
    trace(0, 1).write(library / "bad" / "trace.rank0.json.gz")
    reads = []
    plain = one_record.read_traces
    monkeypatch.setattr(one_record, "read_traces", lambda path, **asked: (reads.append(path), plain(path, **asked))[1])
    client = client_of(library, limits=ViewLimits(seconds=0))
    for page in TRACED:
        answer = client.get(f"/{page}/bad")
        assert answer.status_code == 422
        assert "longer than 0 s" in answer.text
        assert "paceline view --page-seconds" in answer.text
    assert len(reads) == 1
    assert client.get("/run/bad").status_code == 200
    assert client.get("/logs/bad").status_code == 200


def test_what_was_computed_is_not_computed_again(library, client_of, monkeypatch):
    made = []
    plain = spans.from_traces
    monkeypatch.setattr(spans, "from_traces", lambda *args: (made.append(args), plain(*args))[1])
    client = client_of(library)
    first = client.get(f"/timeline/{TRAIN}")
    assert client.get(f"/timeline/{TRAIN}").text == first.text
    assert client.get(f"/spans/{TRAIN}?step={made[0][1]}").status_code == 200
    assert len(made) == 1


def test_an_expensive_page_keeps_no_other_page_waiting(library, client_of, monkeypatch):
    trace(0, 1).write(library / "bad" / "trace.rank0.json.gz")
    begun, may_end = threading.Event(), threading.Event()
    plain = one_record.read_traces

    def read(path, **asked):
        if "bad" in str(path):
            begun.set()
            assert may_end.wait(250)
        return plain(path, **asked)

    monkeypatch.setattr(one_record, "read_traces", read)
    # More visitors than the server has threads.
    with client_of(library) as client, ThreadPoolExecutor(60) as visitors:
        waiting = [visitors.submit(client.get, "/ops/bad") for _ in range(50)]
        try:
            assert begun.wait(250)
            others = ("/", "/run/bad", "/logs/bad", f"/run/{TRAIN}", f"/ops/{TRAIN}", f"/timeline/{TRAIN}")
            for address in others:
                assert visitors.submit(client.get, address).result(100).status_code == 200, address
            assert not any(one.done() and one.result().status_code == 200 for one in waiting)
        finally:
            may_end.set()
        told = {one.result().status_code for one in waiting}
    assert 200 in told
    assert told <= {200, 422}  # those that waited too long are told so


def test_traces_of_many_records_are_not_all_kept(tmp_path):
    for number in range(3):
        make_run(tmp_path / f"run{number}", steps=3, ranks=1, traced=True)
    library = Library(tmp_path, ViewLimits(events=1500))
    kept = [library.open(f"run{number}") for number in range(3)]
    for record in kept:
        assert record.tables.traces
    assert sum(record.events for record in kept) > 1500
    assert library.open("run2") is kept[2]
    assert library.open("run0") is not kept[0]


def test_a_loop_over_very_many_rows_is_left_in_the_middle():
    rows, seen = paced(range(10 * PIECE)), []
    for _ in range(3 * PIECE):
        next(rows)
    with within(0, "the rest"), pytest.raises(TraceError, match="longer than 0 s"):
        seen.extend(rows)
    assert len(seen) < PIECE


def test_time_inside_a_block_does_not_count_for_the_outer_one(monkeypatch):
    clock = iter([0.0, 0.0, 100.0, 100.0, 109.0, 111.0])
    monkeypatch.setattr("paceline.tables.trace.time_limit.time.monotonic", lambda: next(clock))
    with within(10, "all of it"):
        with within(200, "a part"):
            go_on()  # at 100
        go_on()  # at 109, of which 100 were the part's
        with pytest.raises(TraceError, match="all of it takes longer than 10 s"):
            go_on()
