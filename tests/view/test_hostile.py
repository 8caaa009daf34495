"""Records that are damaged, huge or made to harm: an error page that says what is wrong, and little memory."""

from __future__ import annotations

import gzip
import json
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_records import TRAIN, make_run, make_series, trace

from paceline.view.records import record as one_record
from paceline.view.records.limits import ViewLimits

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)  # JSON has no others
KEYS = [
    "rule",
    "title",
    "evidence",
    "mod",
    "predicted_gain",
    "name",
    "value",
    "unit",
    "cores",
    "gpus",
    "id",
    "links",
    "choice",
]


@pytest.fixture
def broken(tmp_path, client_of):
    """A folder with one good record and one that a test breaks."""
    make_run(tmp_path / TRAIN, steps=5, ranks=1)
    make_run(tmp_path / "bad", steps=5, ranks=2)
    return tmp_path / "bad", client_of(tmp_path)


DAMAGE = {
    "empty": b"",
    "not JSON": b"\x00\xff\xfe garbage",
    "cut short": b'{"schema": 1, "paceline": "0", "ver',
    "wrong types": json.dumps({"schema": 1, "paceline": 3, "workers": "many"}).encode(),
    "a newer schema": json.dumps({"schema": 99}).encode(),
    "deep": b'{"schema":1,"paceline":"0","verb":"run","script":"a","arguments":[],"settings":{"x":'
    + b"[" * 200_000
    + b"]" * 200_000
    + b"}}",
    "a million workers": json.dumps(
        {
            "paceline": "0",
            "verb": "run",
            "script": "a",
            "arguments": [],
            "settings": {},
            "workers": [{"rank": 0, "host": "a", "pid": 1, "cores": [], "threads": 1}] * 5000,
        }
    ).encode(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_run_is_told_and_the_others_stay(broken, damage):
    folder, client = broken
    (folder / "run.json").write_bytes(damage)
    answer = client.get("/run/bad")
    assert answer.status_code == 422
    assert "run.json" in answer.text
    assert "Traceback" not in answer.text
    assert client.get("/").status_code == 200
    assert TRAIN in client.get("/").text
    assert client.get(f"/run/{TRAIN}").status_code == 200


def test_a_huge_file_is_not_read(broken, monkeypatch):
    folder, client = broken
    with open(folder / "run.json", "ab") as file:
        file.truncate(3 << 30)  # a hole: takes no disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = client.get("/run/bad")
    assert answer.status_code == 422
    assert "MiB" in answer.text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_of_huge_step_files_only_the_end_is_read(broken):
    folder, client = broken
    line = (folder / "steps.rank0.jsonl").read_bytes().splitlines(keepends=True)[0]
    with open(folder / "steps.rank0.jsonl", "wb") as file:
        file.truncate(2 << 30)
        file.seek(0, 2)
        file.write(b"\n" + line * 50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = client.get("/run/bad")
    assert answer.status_code == 200
    assert "leave out its first steps" in answer.text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KiB


def test_a_torn_last_line_is_no_damage_and_a_torn_line_before_it_is(broken):
    folder, client = broken
    whole = (folder / "steps.rank0.jsonl").read_bytes()
    (folder / "steps.rank0.jsonl").write_bytes(whole + b'{"step": 6, "at"')
    assert client.get("/run/bad").status_code == 200
    (folder / "steps.rank0.jsonl").write_bytes(b'{"step": 0, "at"\n' + whole)
    answer = client.get("/run/bad")
    assert answer.status_code == 422
    assert "line 1" in answer.text


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "17", '{"findings": 3}', '[{"rule": 3, "evidence": {"a": [1]}, "how": 4}, 4]']
)
def test_damaged_findings_are_told_or_left_out(broken, text):
    folder, client = broken
    (folder / "findings.json").write_text(text)
    answer = client.get("/run/bad")
    assert answer.status_code in (200, 422)
    assert answer.status_code == 200 or "findings.json" in answer.text


def test_limits_are_those_of_the_docs():
    assert one_record.LARGEST == 16 << 20
    assert ViewLimits().events == 8_000_000
    assert ViewLimits().seconds == 30


def _gz(data: bytes) -> bytes:
    return gzip.compress(data, 1)


TRACES = {
    "not compressed": b"{}",
    "empty": b"",
    "cut short": _gz(b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}')[:-9],
    "not JSON": _gz(b"hello"),
    "no list": _gz(b'{"traceEvents": 3}'),
    "deep": _gz(b'{"traceEvents": [{"args": ' + b"[" * 300_000),
    "a bomb": _gz(b'{"traceEvents": [' + b" " * (80 << 20)),
}


@pytest.mark.parametrize("data", TRACES.values(), ids=TRACES.keys())
def test_a_damaged_trace_is_told_and_the_dashboard_stays(broken, data):
    folder, client = broken
    (folder / "trace.rank0.json.gz").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for page in ("ops", "timeline"):
        answer = client.get(f"/{page}/bad")
        assert answer.status_code == 422, page
        assert "trace.rank0.json.gz" in answer.text
        assert "Traceback" not in answer.text
    assert client.get("/spans/bad?step=1").status_code == 422
    assert client.get("/run/bad").status_code == 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB


def test_a_trace_with_too_many_events_is_refused(broken, client_of):
    folder, client = broken
    trace(0, 2).write(folder / "trace.rank0.json.gz")
    assert client.get("/ops/bad").status_code == 200
    answer = client_of(folder.parent, limits=ViewLimits(events=100)).get("/ops/bad")
    assert answer.status_code == 422
    assert "more than 100 events" in answer.text
    assert "paceline view --most-events 400" in answer.text


@pytest.mark.parametrize("verdict", ["{", "[]", '{"points": 1, "mods": 1}', '{"mode": "strong"}', "[" * 50_000])
@pytest.mark.parametrize("verb", ["scale", "sweep", "tune", "converge", "bandwidth"])
def test_a_damaged_verdict_is_told(tmp_path, client_of, verb, verdict):
    make_series(tmp_path / "bad", verb, {})
    (tmp_path / "bad" / "verdict.json").write_text(verdict)
    answer = client_of(tmp_path).get("/run/bad")
    assert answer.status_code == 200, "the page shows the rest of the record"
    # A verdict of tune may be empty, and says nothing then.
    damaged = "verdict.json is" in answer.text and "note wide bad" in answer.text
    assert damaged or (verb == "tune" and verdict == '{"mode": "strong"}')


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=12,
    )
)
def test_whatever_findings_and_topology_say_the_pages_stand(tmp_path_factory, client_of, told):
    root = tmp_path_factory.mktemp("any")
    folder = make_run(root / "bad", steps=3, ranks=1)
    (folder / "findings.json").write_text(json.dumps([told, told]))
    run = json.loads((folder / "run.json").read_text())
    run["topology"] = told if isinstance(told, dict) else {"cores": told, "gpus": told}
    (folder / "run.json").write_text(json.dumps(run))
    client = client_of(root)
    assert client.get("/run/bad").status_code == 200
    assert client.get("/topology/bad").status_code in (200, 422)
    assert client.get("/").status_code == 200
