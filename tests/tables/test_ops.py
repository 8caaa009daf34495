"""The op table says what torch's own says, to the nanosecond."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from cuda_trace import COMMUNICATION, Machine
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from paceline.tables.kernels import kernels, kernels_by_op
from paceline.tables.ops import op_types, ops
from paceline.tables.trace.columns import read_trace

KINDS = {False: "op", True: "mark"}


def theirs(averages):
    """torch's table: (kind, name) → calls and nanoseconds of the host."""
    return {
        (KINDS[bool(row.is_user_annotation)], row.key): (
            row.count,
            round(row.self_cpu_time_total * 1000),
            round(row.cpu_time_total * 1000),
        )
        for row in averages
        if row.device_type == DeviceType.CPU and row.key != "[memory]" and "(" not in row.key and "<" not in row.key
    }


def ours(path: Path):
    return {
        (row["kind"], row["name"]): (row["calls"], round(row["host_self"] * 1e9), round(row["host_total"] * 1e9))
        for row in ops(read_trace(path)).iter_rows(named=True)
    }


def train(steps: int, profiler=None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        with record_function("my part"):
            loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(5, (4,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        torch.ones(3).to(torch.float64).contiguous().clone()
        if profiler is not None:
            profiler.step()


@pytest.mark.parametrize("memory", [False, True])
def test_a_real_trace_gives_the_figures_of_key_averages(tmp_path, memory):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=memory) as profiler:
        train(3)
    path = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    assert ours(path) == theirs(profiler.key_averages())


def test_steps_are_one_row(tmp_path):
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=3, repeat=1)
    ) as profiler:
        train(4, profiler)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = ours(path)
    assert found == theirs(profiler.key_averages())
    assert found["mark", "ProfilerStep*"][0] == 3


def test_with_the_stack_ops_are_still_the_same(tmp_path):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        train(2)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found, expected = ours(path), theirs(profiler.key_averages())
    only_ops = {key: figures for key, figures in found.items() if key[0] == "op"}
    assert only_ops.items() <= expected.items()
    assert len(only_ops) > 30


NAMES = ["aten::linear", "aten::addmm", "aten::conv2d", "aten::relu"]


def play(machine: Machine, draw: random.Random, depth: int = 0) -> None:
    """Ops inside ops, with kernels, some of which have the name of the op around them."""
    for _ in range(draw.randrange(1, 4)):
        with machine.op(draw.choice(NAMES), 2 * draw.randrange(1, 900)):
            if depth < 4 and draw.random() < 0.7:
                play(machine, draw, depth + 1)
            for _ in range(draw.randrange(3)):
                name = draw.choice(["sgemm", "sm80_xmma_gemm_tensor16x8x16", "ncclDevKernel_AllReduce_Sum_f32"])
                machine.launch(name, draw.randrange(1, 5000), stream=draw.choice([7, COMMUNICATION]))
            machine.work(draw.randrange(1, 50))


def torch_says(machine: Machine):
    """The same events given to torch's own arithmetic."""
    events = EventList(use_device="cuda")
    by_id = {}
    for event in machine.events:
        start, end = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
        on_device = event["cat"] in ("kernel", "gpu_memcpy")
        told = FunctionEvent(
            id=event["args"].get("External id", 0) if event["cat"] == "cpu_op" else event["args"]["correlation"],
            name=event["name"],
            thread=event["tid"],
            start_us=start,
            end_us=end,
            device_type=DeviceType.CUDA if on_device else DeviceType.CPU,
            device_index=0,
            use_device="cuda",
            stack=[],
        )
        if event["cat"] == "cpu_op":
            by_id[told.id] = told
        if on_device:
            by_id[event["args"]["External id"]].append_kernel(event["name"], 0, end - start)
        events.append(told)
    events._build_tree()
    return {
        row.key: (
            row.count,
            row.self_cpu_time_total,
            row.cpu_time_total,
            row.self_device_time_total,
            row.device_time_total,
        )
        for row in events.key_averages()
        if row.device_type == DeviceType.CPU
    }


@given(st.integers(0, 10_000))
def test_device_time_is_that_of_key_averages(tmp_path, seed):
    machine = Machine()
    play(machine, random.Random(seed))
    table = ops(read_trace(machine.write(tmp_path / "trace.json")))
    found = {
        row["name"]: tuple(
            row[name] * (1 if name == "calls" else 1e6)
            for name in ("calls", "host_self", "host_total", "device_self", "device_total")
        )
        for row in table.iter_rows(named=True)
    }
    expected = torch_says(machine)
    assert found.keys() == expected.keys()
    for name, figures in expected.items():
        assert found[name] == pytest.approx(figures, abs=2e-3 * figures[0]), name


def test_a_kernel_belongs_to_the_op_that_launched_it(tmp_path):
    machine = Machine()
    with machine.op("aten::linear"), machine.op("aten::addmm"):
        machine.launch("sgemm", 5_000)
        machine.launch("sm80_xmma_gemm_f16f16_tensor16x8x16", 15_000)
    machine.launch("lonely", 1_000)
    trace = read_trace(machine.write(tmp_path / "trace.json"))
    rows = {(row["op"], row["kernel"]): row for row in kernels_by_op(trace).iter_rows(named=True)}
    assert rows["aten::addmm", "sgemm"]["total"] == pytest.approx(5e-6)
    assert ("cudaLaunchKernel", "lonely") in rows
    assert len(rows) == 3
    addmm = ops(trace).filter(name="aten::addmm").row(0, named=True)
    assert (addmm["eligible"], addmm["tensor_cores"], addmm["kernels"]) == (True, 0.75, 2)
    assert kernels(trace)["tensor_cores"].to_list() == [True, False, False]
    assert op_types(trace)["type"].to_list() == ["matrix product"]


def test_names_that_are_not_ids_do_not_join(tmp_path):
    """A trace whose ids are missing: kernels stay without an op, and nothing fails."""
    machine = Machine()
    with machine.op("aten::mm"):
        machine.launch("sgemm", 100)
    for event in machine.events:
        event["args"] = {}
    trace = read_trace(machine.write(tmp_path / "trace.json"))
    assert kernels_by_op(trace)["op"].to_list() == [""]
    assert ops(trace)["device_self"].sum() == 0


def test_an_empty_trace_has_empty_tables(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": []}))
    trace = read_trace(path)
    for table in (ops, op_types, kernels, kernels_by_op):
        assert table(trace).height == 0
