"""What a device did with its time, against a look at every single nanosecond."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from cuda_trace import Machine
from hypothesis import given
from hypothesis import strategies as st

from paceline.record.phases import PHASES
from paceline.tables import timeline as module
from paceline.tables.kernels import launches
from paceline.tables.timeline import CAUSES, overlap, timeline
from paceline.tables.trace.columns import read_trace
from paceline.tables.trace.steps import breakdown

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SPAN = st.tuples(st.integers(0, 80), st.integers(1, 25))
DEVICE = st.lists(st.tuples(st.sampled_from(["kernel", NCCL, "gpu_memcpy"]), SPAN, st.integers(0, 60)), max_size=8)
HOST = st.lists(st.tuples(st.sampled_from(["paceline.data", "paceline.communication", "sync"]), SPAN), max_size=5)
END = 120


def write(path, device, host, steps=(0, 50, END)):
    events = [_event("user_annotation", f"ProfilerStep#{k}", a, b - a) for k, (a, b) in enumerate(pairwise(steps))]
    for number, (kind, (start, length), before) in enumerate(device, 1):
        cat, name = (kind, "Memcpy HtoD") if kind == "gpu_memcpy" else ("kernel", kind)
        told = {"device": 0, "stream": 7 + number, "correlation": number}
        events.append(_event(cat, name, start, length, pid=0, tid=7, args=told))
        events.append(
            _event("cuda_runtime", "cudaLaunchKernel", max(start - before, 0), 1, args={"correlation": number})
        )
    for name, (start, length) in host:
        cat, name = ("cuda_runtime", "cudaStreamSynchronize") if name == "sync" else ("user_annotation", name)
        events.append(_event(cat, name, start, length, args={}))
    path.write_text(json.dumps({"traceEvents": events}))
    return read_trace(path)


def _event(cat, name, start, length, pid=1, tid=1, args=None):
    told = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args or {}}
    return {**told, "ts": start / 1000, "dur": length / 1000}


def reference(device, host, start, end):
    """Each nanosecond for itself."""
    moments = {
        name: set() for name in ("kernel", NCCL, "gpu_memcpy", "paceline.data", "paceline.communication", "sync")
    }
    for kind, (a, length), _ in device:
        moments[kind] |= set(range(a, a + length))
    for name, (a, length) in host:
        moments[name] |= set(range(a, a + length))
    busy = moments["kernel"] | moments[NCCL] | moments["gpu_memcpy"]
    found = dict.fromkeys(["compute", "communication", "copy", *(f"idle_{cause}" for cause in CAUSES)], 0)
    for t in range(start, end):
        if t in busy:
            part = "compute" if t in moments["kernel"] else "communication" if t in moments[NCCL] else "copy"
        else:
            begin = t
            while begin > 0 and begin - 1 not in busy:
                begin -= 1
            part = f"idle_{_cause(t, begin, moments, device)}"
        found[part] += 1
    return found


def _cause(t, begin, moments, device):
    if t in moments["paceline.data"]:
        return "input"
    if t in moments["paceline.communication"]:
        return "peer"
    following = sorted((a, number) for number, (_, (a, _), _) in enumerate(device) if a > t)
    if following:
        start, number = following[0]
        if t >= max(start - device[number][2], 0):
            return "queue"
    return "synchronisation" if begin - 1 in moments["sync"] else "host"


@given(DEVICE, HOST)
def test_every_moment_counts_once_and_for_the_right_reason(tmp_path, monkeypatch, device, host):
    monkeypatch.setattr(module, "LATE", 0)
    # Of several that begin together, the launch of either may be meant.
    device = list({a: (kind, (a, length), before) for kind, (a, length), before in device}.values())
    trace = write(tmp_path / "trace.json", device, host)
    if not device:
        assert timeline(trace).height == 0
        return
    for row, (start, end) in zip(timeline(trace).iter_rows(named=True), [(0, 50), (50, END)], strict=True):
        expected = reference(device, host, start, end)
        assert {part: round(row[part] * 1e9) for part in expected} == expected
        assert row["wall"] == pytest.approx(sum(row[part] for part in ("compute", "communication", "copy", "idle")))
        assert row["idle"] == pytest.approx(sum(row[f"idle_{cause}"] for cause in CAUSES))


@given(DEVICE)
def test_communication_is_hidden_or_exposed(tmp_path, device):
    trace = write(tmp_path / "trace.json", device, [])
    moments = {kind: {t for k, (a, n), _ in device if k == kind for t in range(a, a + n)} for kind in ("kernel", NCCL)}
    for row in overlap(trace).iter_rows(named=True):
        assert round(row["communication"] * 1e9) == len(moments[NCCL])
        assert round(row["hidden"] * 1e9) == len(moments[NCCL] & moments["kernel"])
        assert row["exposed"] == pytest.approx(row["communication"] - row["hidden"])
        assert row["share"] is None or row["share"] == pytest.approx(row["hidden"] / row["communication"])


MARKS = st.recursive(
    st.tuples(st.sampled_from(PHASES[:-1]), st.integers(1, 9)),
    lambda inner: st.tuples(st.sampled_from(PHASES[:-1]), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


@given(st.lists(MARKS, max_size=4), st.integers(0, 40))
def test_a_moment_belongs_to_the_innermost_mark(tmp_path, marks, idle):
    events, expected, now = [], dict.fromkeys(PHASES, 0), 0

    def lay(mark) -> None:
        nonlocal now
        phase, inside = mark
        start = now
        if isinstance(inside, int):
            now += inside
            expected[phase] += inside
        else:
            for one in inside:
                now += 1
                expected[phase] += 1
                lay(one)
        events.append(_event("user_annotation", f"paceline.{phase}", start, now - start))

    for mark in marks:
        lay(mark)
        now += idle
        expected["other"] += idle
    events.append(_event("user_annotation", "ProfilerStep#3", 0, now))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    row = breakdown(read_trace(path)).row(0, named=True)
    if not now:
        return
    # Marks of one length are inside each other either way: the deeper one comes first in the file. Without a mark at a
    # seam, the phases there are null: not measured.
    found = {phase: row[phase] or 0.0 for phase in PHASES}
    assert {phase: round(seconds * 1e9) for phase, seconds in found.items()} == expected
    assert sum(found.values()) == pytest.approx(row["wall"])


def step(machine: Machine, *, data=0, kernels=4, length=50_000, between=1_000, wait=False, late=0):
    with machine.step():
        with machine.annotation("paceline.data"):
            machine.work(data)
        with machine.annotation("paceline.forward"):
            for _ in range(kernels):
                with machine.op("aten::mm"):
                    machine.launch("sgemm", length)
                machine.work(between)
        if wait:
            with machine.op("aten::item"):
                machine.copy("DtoH (Device -> Pageable)", 4, 1_500)
                machine.synchronize("cudaStreamSynchronize")
        machine.work(late)


def biggest(trace):
    row = timeline(trace).select(pl.col(f"idle_{cause}").sum() for cause in CAUSES).row(0, named=True)
    return max(row, key=lambda cause: row[cause]).removeprefix("idle_")


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        ("input", {"data": 900_000}),
        ("host", {"length": 2_000, "between": 40_000}),
        ("synchronisation", {"wait": True, "late": 30_000}),
        ("queue", {"length": 2_000, "kernels": 1, "wait": True}),
    ],
)
def test_a_device_that_idles_says_why(tmp_path, cause, how):
    machine = Machine(latency=60_000 if cause == "queue" else 3_000)
    for _ in range(4):
        step(machine, **how)
    trace = read_trace(machine.write(tmp_path / "trace.json.gz"))
    assert biggest(trace) == cause
    table = timeline(trace)
    parts = table.select("compute", "communication", "copy", "idle").sum().row(0)
    assert sum(parts) == pytest.approx(table["wall"].sum(), rel=1e-9)


def test_input_that_is_hidden_under_compute_costs_nothing(tmp_path):
    hidden, shown = Machine(), Machine()
    for _ in range(5):
        step(hidden, data=200_000, length=400_000)
        step(shown, data=200_000, length=10_000)
    rows = [
        timeline(read_trace(machine.write(tmp_path / "trace.json")))["idle_input"][1:].sum()
        for machine in (hidden, shown)
    ]
    assert rows[0] == 0
    assert rows[1] > 4 * 100e-6


def test_small_kernels_are_counted(tmp_path):
    machine = Machine()
    for _ in range(3):
        step(machine, kernels=100, length=2_000, between=8_000)
        step(machine, kernels=1, length=1_000_000)
    row = launches(read_trace(machine.write(tmp_path / "trace.json"))).row(0, named=True)
    assert row["kernels"] == pytest.approx(303 / 6)
    assert row["small"] == pytest.approx(300 / 303)
    assert row["small_time"] == pytest.approx(0.6 / 3.6)
    assert row["launch"] == pytest.approx(4e-6)
    assert 0.1 < row["late"] < 0.5


def test_a_trace_from_elsewhere_is_guessed_into_phases(tmp_path):
    machine = Machine()
    with machine.step():
        with machine.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            machine.work(1_000)
        with machine.op("aten::linear", 2_000):
            pass
        with machine.op("autograd::engine::evaluate_function: AddmmBackward0", 3_000):
            pass
        with machine.annotation("Optimizer.step#Adam.step"), machine.op("aten::add_", 4_000):
            pass
        machine.work(500)
    row = breakdown(read_trace(machine.write(tmp_path / "trace.json"))).row(0, named=True)
    figures = [round(row[phase] * 1e9) for phase in ("data", "forward", "backward", "optimizer", "other")]
    assert figures == [1_000, 2_000, 3_000, 4_000, 500]


def test_numpy_is_not_asked_for_the_impossible(tmp_path):
    """Kernels before, between and after the steps."""
    machine = Machine()
    machine.launch("early", 5_000)
    machine.work(100_000)
    step(machine)
    machine.work(100_000)
    machine.launch("late", 5_000)
    row = timeline(read_trace(machine.write(tmp_path / "trace.json"))).row(0, named=True)
    assert row["wall"] == pytest.approx(row["compute"] + row["idle"])
    assert np.isfinite(list(row.values())).all()
