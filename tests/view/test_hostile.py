"""Records that are damaged, huge or made to harm: an error page that says what is wrong, and little memory."""

from __future__ import annotations

import json
import resource

import pytest
from view_records import TRAIN, make_run

from paceline.view import opened


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
    assert "first steps are left out" in answer.text
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
    assert opened.LARGEST == 16 << 20
    assert opened.MOST_EVENTS == 8_000_000
