"""Which events belong together, why a stream has no work, and which work decides how long a step takes."""

from __future__ import annotations

import polars as pl
from cuda_trace import COMMUNICATION, COMPUTE, Machine

from paceline.tables.critical_path import Part, collectives, critical_path, launch_pairs
from paceline.tables.timeline import REASONS, stream_gaps
from paceline.tables.trace.columns import read_trace
from paceline.tables.trace.steps import windows


def read(machine, folder, name="trace"):
    return read_trace(machine.write(folder / f"{name}.rank{machine.rank}.json"))


def whole(trace):
    steps = windows(trace)
    return Part(trace=trace, start=steps["start"][0], end=steps["end"][-1], shift=0)


def names(trace, path):
    return [trace.events["name"][event] if event >= 0 else "" for event in path["event"]]


def seconds(path, trace, name):
    told = path.with_columns(pl.Series("name", names(trace, path)))
    return (
        told.filter((pl.col("name") == name) & (pl.col("kind") != "queue"))
        .select((pl.col("end") - pl.col("start")).sum())
        .item()
    )


def test_a_launch_and_its_kernel_belong_together(tmp_path):
    machine = Machine()
    with machine.step(), machine.op("aten::relu"):
        machine.launch("first", 5_000)
        machine.launch("second", 5_000)
    trace = read(machine, tmp_path)
    pairs = launch_pairs(trace)
    name = trace.events["name"].cast(pl.String)
    assert [(name[a], name[b]) for a, b in pairs.rows()] == [
        ("cudaLaunchKernel", "first"),
        ("cudaLaunchKernel", "second"),
    ]


def ranks(folder, *works, collectives_of=(2, 2)):
    found = []
    for rank, work in enumerate(works):
        machine = Machine(rank, len(works))
        with machine.step():
            for _ in range(collectives_of[rank]):
                with machine.op("aten::mm"):
                    machine.work(work)
                with machine.annotation("paceline.communication"), machine.op("gloo:all_reduce"):
                    machine.work(1_000)
        found.append(read(machine, folder))
    return found


def test_the_same_collective_is_found_on_all_ranks_once(tmp_path):
    found = collectives(ranks(tmp_path, 10_000, 30_000))
    assert found.height == 4  # a backend's op inside our mark is the same collective
    assert found["collective"].to_list() == [1, 1, 2, 2]
    first = found.filter(pl.col("collective") == 1)
    assert first["start"][1] - first["start"][0] == 20_000


def test_collectives_whose_number_differs_are_not_joined(tmp_path):
    assert collectives(ranks(tmp_path, 10_000, 10_000, collectives_of=(2, 3))).height == 0


def test_a_stream_says_why_it_has_no_work(tmp_path):
    machine = Machine()
    with machine.step():
        with machine.annotation("paceline.data"):
            machine.work(100_000)
        with machine.op("aten::mm"):
            machine.launch("compute", 50_000)
        machine.wait_for(COMMUNICATION, COMPUTE)
        machine.launch("ncclDevKernel_AllReduce", 80_000, stream=COMMUNICATION)
        machine.synchronize()
        with machine.op("aten::slow"):
            machine.work(60_000)
            machine.launch("late", 10_000)
        machine.synchronize()
    trace = read(machine, tmp_path)
    gaps = stream_gaps(trace)
    length = pl.col("end") - pl.col("start")
    compute = (
        gaps.filter(pl.col("stream") == COMPUTE).select(pl.col(cause).sum() for cause in REASONS).row(0, named=True)
    )
    assert compute["input"] == 100_000
    assert compute["other stream"] == 80_000  # the collective
    assert 60_000 <= compute["synchronisation"] <= 70_000
    assert (gaps.select(pl.sum_horizontal(*REASONS) == length).to_series()).all(), "one cause at any moment"
    assert set(gaps.filter(pl.col("input") == 100_000)["cause"]) == {"input"}
    step = whole(trace)
    for (stream,), own in gaps.group_by("stream"):
        busy = trace.device.filter(pl.col("stream") == stream).select(length.sum()).item()
        assert own.select(length.sum()).item() + busy == step.end - step.start, "gaps and work are all of the step"
        assert (own["start"][1:] >= own["end"][:-1]).all()
    half = (step.start + step.end) // 2
    parts = [stream_gaps(trace, *part) for part in ((step.start, half), (half, step.end))]
    assert pl.concat(parts).select(length.sum()).item() == gaps.select(length.sum()).item()


def test_a_device_that_is_never_idle_is_the_path(tmp_path):
    machine = Machine()
    with machine.step():
        for _ in range(10):
            with machine.op("aten::mm", 1_000):
                machine.launch("gemm", 100_000)
        machine.synchronize()
    trace = read(machine, tmp_path)
    path = critical_path([whole(trace)])
    assert seconds(path, trace, "gemm") == 1_000_000
    assert (path["start"][1:] == path["end"][:-1]).all(), "without gaps"
    assert (path["start"][0], path["end"][-1]) == (whole(trace).start, whole(trace).end)
    assert names(trace, path.filter(pl.col("kind") == "kernel")).count("gemm") == 10


def test_a_host_that_launches_too_late_is_the_path(tmp_path):
    machine = Machine()
    with machine.step():
        for _ in range(10):
            with machine.op("aten::mm", 100_000):
                machine.launch("gemm", 2_000)
        machine.synchronize()
    trace = read(machine, tmp_path)
    path = critical_path([whole(trace)])
    assert seconds(path, trace, "gemm") <= 2_000  # the last one at most
    assert seconds(path, trace, "aten::mm") >= 900_000


def test_a_wait_for_another_stream_leads_there(tmp_path):
    machine = Machine()
    with machine.step():
        machine.launch("backward", 50_000)
        machine.wait_for(COMMUNICATION, COMPUTE)
        machine.launch("ncclDevKernel_AllReduce", 200_000, stream=COMMUNICATION)
        machine.wait_for(COMPUTE, COMMUNICATION)
        machine.launch("optimizer", 10_000)
        machine.synchronize()
    trace = read(machine, tmp_path)
    path = critical_path([whole(trace)]).filter(pl.col("kind") == "kernel")
    assert names(trace, path) == ["backward", "ncclDevKernel_AllReduce", "optimizer"]


def test_the_path_goes_over_the_rank_that_the_others_wait_for(tmp_path):
    traces = ranks(tmp_path, 10_000, 30_000)
    path = critical_path([whole(trace) for trace in traces])
    work = path.filter(pl.col("kind") == "op")
    assert set(work["rank"]) == {1}
    assert work.select((pl.col("end") - pl.col("start")).sum()).item() >= 60_000


def test_a_trace_of_nothing_has_no_path():
    assert critical_path([]).height == 0
