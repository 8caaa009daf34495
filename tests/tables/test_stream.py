"""Traces are read whole, whatever they are written like; what is no trace is refused with a word, in little memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import TraceError
from paceline.tables.trace import json_reader
from paceline.tables.trace.columns import read_trace
from paceline.tables.trace.json_reader import JsonStream

TEXT = st.text(max_size=8) | st.sampled_from(
    ['"', "\\", "}, {", '"},{"ph":"X"', "]", "traceEvents", '\\"', "é", "\u2028"]
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=6)
NUMBERS = st.integers(0, 10**12) | st.floats(0, 1e12)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from("XiMsf"), "name": TEXT, "ts": NUMBERS},
        optional={"cat": TEXT, "dur": NUMBERS, "args": st.fixed_dictionaries({}, optional={"x": VALUES, "y": VALUES})},
    ),
    max_size=12,
)
OTHERS = st.dictionaries(st.sampled_from(["a", "b", "schema", 'q"']), VALUES, max_size=3)
INDENT = st.sampled_from([None, 0, 2])


def names(path: Path) -> list[tuple[str, float]]:
    return [(event.name, event.ts) for events in JsonStream(path) for event in events]


@given(EVENTS, OTHERS, OTHERS, INDENT, st.sampled_from([16, 64, 700]), st.booleans(), st.booleans())
def test_events_are_the_same_however_they_are_cut_and_written(
    tmp_path, monkeypatch, events, before, after, indent, chunk, bare, packed
):
    monkeypatch.setattr(json_reader, "CHUNK", chunk)
    monkeypatch.setattr(json_reader, "GUESSED", chunk // 2)
    document = events if bare else {**before, "traceEvents": events, **{f"z{k}": v for k, v in after.items()}}
    text = json.dumps(document, indent=indent).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert names(path) == [(event["name"], event["ts"]) for event in events]


def test_a_list_without_its_bracket_is_a_trace(tmp_path):
    """Chrome's format allows it, for programs that are killed while they write."""
    path = tmp_path / "trace.json"
    for text in (
        '[{"name": "a"}, {"name": "b"}',
        '[{"name": "a"},\n{"name": "b"},\n',
        '\ufeff[{"name":"a"},{"name":"b"}]',
    ):
        path.write_text(text)
        assert [name for name, _ in names(path)] == ["a", "b"]


def test_what_stands_before_and_behind_the_events_is_kept(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"baseTimeNanoseconds": 7, "traceEvents": [], "distributedInfo": {"rank": 3, "world_size": 4}}')
    trace = read_trace(path)
    assert (trace.base, trace.rank, trace.world) == (7, 3, 4)


EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7, "args": {}}'
WHOLE = f'{{"schemaVersion": 1, "traceEvents": [{EVENT}, {EVENT}], "traceName": "x"}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"hello", "is not JSON"),
        (b"\x80\x04\x95pickled", "is not JSON"),
        (b'{"a": 1}', 'has no "traceEvents"'),
        (b'{"a": {"traceEvents": []}}', 'has no "traceEvents"'),
        (b'{"traceEvents": 7}', "is not a list"),
        (b'{"traceEvents": [7, 8]}', "invalid event"),
        (b'{"traceEvents": [{"ts": []}]}', "invalid event"),
        (b'{"traceEvents": [{"name": "\xff\xfe"}]}', "invalid event"),
        (b'{"traceEvents": [{"args": {"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}]}", "nested too deeply"),
        (b'{"deviceProperties": ' + b"[" * 200_000 + b"]" * 200_000 + b', "traceEvents": []}', "invalid metadata"),
        (b"[" * 1_000_000, "invalid event|nested"),
        (b'{"traceEvents": [' + b'{"a":' * 400_000, "cut short"),
        (gzip.compress(b"hello"), "is not JSON"),
        (b"\x1f\x8bnot really", "damaged or was cut short"),
        (gzip.compress(WHOLE.encode())[:-12], "damaged or was cut short"),
    ],
    ids=range(16),
)
def test_what_is_no_trace_is_refused_with_a_word(tmp_path, text, said):
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(TraceError, match=said) as caught:
        read_trace(path)
    assert str(path) in caught.value.message
    assert caught.value.advice


@pytest.mark.parametrize("length", range(1, len(WHOLE), 7))
def test_a_trace_that_was_cut_short_is_refused_wherever_it_ends(tmp_path, length):
    path = tmp_path / "trace.json"
    path.write_text(WHOLE[:length])
    with pytest.raises(TraceError):
        read_trace(path)


def test_a_folder_or_nothing_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(TraceError, match="cannot be read"):
            read_trace(path)


def test_strange_values_are_read_as_absent(tmp_path):
    path = tmp_path / "trace.json"
    args = '{"stream": "seven", "device": 1e300, "correlation": "12", "External id": null, "bytes": -1e999}'
    event = EVENT.replace("{}", args).replace('"tid": 7', '"tid": "Spans"').replace('"ts": 1,', '"ts": 1e300,')
    path.write_text(f"[{event}]".replace("-1e999", "99999999999999999999999"))
    row = read_trace(path).events.row(0, named=True)
    assert (row["stream"], row["device"], row["correlation"], row["thread"]) == (-1, -1, 12, -1)


BOMBS = {
    "zeros": b"\0",
    "spaces": b" ",
    "events": (EVENT + ", ").encode(),
    "brackets": b"[",
    "text": b'{"name": "' + b"a" * 4000,
}


READER = """
import resource, sys
from pathlib import Path
import paceline.tables.trace.columns as t
from paceline.tables.trace import json_reader
json_reader.PLAUSIBLE = 16 << 20  # a quarter, in a quarter of the time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        t.read_trace(Path(path))
    except t.TraceError as error:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error.message)
"""


def test_files_that_unpack_to_gigabytes_take_little_memory(tmp_path):
    paths = []
    for kind, block in BOMBS.items():
        paths.append(tmp_path / f"{kind}.json.gz")
        member = gzip.compress(block * ((8 << 20) // len(block)))
        paths[-1].write_bytes(gzip.compress(b'{"traceEvents": [') + member * 400)
    done = subprocess.run([sys.executable, "-c", READER, *paths], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(BOMBS)
    for kind, line in zip(BOMBS, lines, strict=True):
        grown, said = line.split(" ", 1)
        assert "fold" in said or "without a complete event" in said or "invalid event" in said
        assert int(grown) < 400 << 10, f"{kind}: {int(grown) >> 10} MiB"
