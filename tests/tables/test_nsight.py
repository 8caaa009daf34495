"""Exports of Nsight Systems are read into the same columns as torch's traces."""

from __future__ import annotations

import json
import sqlite3

import polars as pl
import pytest
from cuda_trace import COMMUNICATION, Machine
from nsight_export import write_nsight

from paceline.__main__ import main
from paceline.errors import TraceError
from paceline.tables.critical_path import collectives, launch_pairs
from paceline.tables.kernels import kernels
from paceline.tables.timeline import timeline
from paceline.tables.trace.columns import read_trace
from paceline.tables.trace.parallel import prove_trace, read_traces
from paceline.tables.trace.time_limit import within


def machine(rank=0, world=1):
    made = Machine(rank, world)
    for _ in range(3):
        with made.step():
            with made.op("aten::copy_"):
                made.copy("HtoD (Pageable -> Device)", 3_000_000, 20_000)
            with made.op("aten::linear"), made.op("aten::addmm"):
                made.launch("void cutlass::Kernel<float>", 90_000)
            made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 60_000, stream=COMMUNICATION)
            made.synchronize()
    return made


def test_an_export_has_the_figures_of_the_same_trace_by_torch(tmp_path):
    made = machine()
    torch = read_trace(made.write(tmp_path / "trace.json"))
    [nsight] = read_traces(write_nsight(tmp_path / "report.sqlite", [made]))
    ours, theirs = (
        kernels(trace).filter(pl.col("kind") == "kernel").select("name", "calls", "total") for trace in (nsight, torch)
    )
    assert ours.sort("name").rows() == theirs.sort("name").rows()
    both = [timeline(trace).drop("rank") for trace in (nsight, torch)]
    assert both[0].equals(both[1])
    pairs = [launch_pairs(trace).height for trace in (nsight, torch)]
    assert pairs == [9, 9]
    names = set(nsight.events["name"].cast(pl.String))
    assert {"cudaLaunchKernel", "aten::addmm", "Memcpy HtoD", "ProfilerStep#1"} <= names
    assert not names & {"a moment", "never ended"}
    assert nsight.base == 1790857026000000000


def test_every_process_is_a_rank(tmp_path):
    path = write_nsight(tmp_path / "report.sqlite", [machine(0, 2), machine(1, 2)])
    traces = read_traces(path)
    assert [trace.rank for trace in traces] == [0, 1]
    assert collectives(traces).height == 6
    assert traces[1].threads[4001, 4001] == "python 4001"


def test_profile_reads_an_export(tmp_path, capfd):
    path = write_nsight(tmp_path / "report.sqlite", [machine()])
    assert main(["profile", "--json", "--quiet", "--trace", str(path)]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["ranks"], told["steps"]) == (1, 3)


def test_what_is_no_export_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE people (name TEXT)")
    base.commit()
    base.close()
    with pytest.raises(TraceError, match="no export of Nsight Systems"):
        read_traces(path)
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(TraceError, match="damaged"):
        read_traces(path)
    (tmp_path / "report.nsys-rep").write_bytes(b"something")
    with pytest.raises(TraceError, match="only Nsight Systems") as caught:
        prove_trace(tmp_path / "report.nsys-rep")
    assert "nsys export" in caught.value.advice
    (tmp_path / "trace.pftrace").write_bytes(b"\n\x10\x08\x01")
    with pytest.raises(TraceError, match="Perfetto") as caught:
        prove_trace(tmp_path / "trace.pftrace")
    assert "traceconv" in caught.value.advice


def test_a_view_that_computes_for_ever_is_not_read(tmp_path):
    path = tmp_path / "evil.sqlite"
    base = sqlite3.connect(path)
    base.execute(
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) "
        "SELECT start, start AS end, 59 AS eventType FROM n"
    )
    base.commit()
    base.close()
    with pytest.raises(TraceError, match="no export"):
        read_traces(path)


def test_a_long_query_stops_at_the_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.tables.trace.nsight.CHECKED", 10)
    path = write_nsight(tmp_path / "report.sqlite", [machine()])
    with pytest.raises(TraceError, match="longer than 0 s"), within(0, "Reading"):
        read_traces(path)


def test_too_many_events_are_refused(tmp_path):
    path = write_nsight(tmp_path / "report.sqlite", [machine()])
    with pytest.raises(TraceError, match="the limit is 5"):
        read_traces(path, most=5)
