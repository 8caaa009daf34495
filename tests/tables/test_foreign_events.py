"""Chrome traces that torch did not write."""

from __future__ import annotations

import json

import polars as pl
from cuda_trace import Machine

from paceline.tables.trace.columns import read_trace


def write(path, events):
    path.write_text(json.dumps({"traceEvents": events}))
    return path


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "renderer"}},
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "ts": 0, "args": {"name": "main"}},
    {"ph": "X", "name": "frame", "cat": "blink,rail", "pid": 7, "tid": 8, "ts": 100.5, "dur": 50},
    {"ph": "B", "name": "outer", "pid": 7, "tid": "io", "ts": 100},
    {"ph": "B", "name": "inner", "pid": 7, "tid": "io", "ts": 110},
    {"ph": "E", "pid": 7, "tid": "io", "ts": 120},
    {"ph": "E", "pid": 7, "tid": "io", "ts": 150},
    {"ph": "E", "pid": 7, "tid": "io", "ts": 160},  # of nothing
    {"ph": "B", "name": "never ended", "pid": 7, "tid": "io", "ts": 170},
    {"ph": "i", "name": "a moment", "pid": 7, "tid": 8, "ts": 171},
]


def test_complete_events_and_pairs_become_events(tmp_path):
    trace = read_trace(write(tmp_path / "trace.json", EVENTS))
    rows = trace.events.select("kind", "name", pl.col("end") - pl.col("start")).rows()
    assert sorted(rows, key=lambda row: row[1]) == [
        ("event", "frame", 50_000),
        ("event", "inner", 10_000),
        ("event", "outer", 50_000),
    ]
    assert set(trace.threads.values()) == {"renderer · main", "renderer · io"}


def test_a_trace_of_torch_keeps_its_kinds_only(tmp_path):
    machine = Machine()
    with machine.step(), machine.op("aten::relu"):
        machine.launch("kernel", 5_000)
    plain = read_trace(machine.write(tmp_path / "plain.json"))
    told = json.loads((tmp_path / "plain.json").read_text())["traceEvents"]
    mixed = read_trace(write(tmp_path / "mixed.json", [*EVENTS, *told, *EVENTS]))
    assert mixed.events["name"].cast(pl.String).to_list() == plain.events["name"].cast(pl.String).to_list()
    assert mixed.threads == {}
