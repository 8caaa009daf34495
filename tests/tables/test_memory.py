"""Memory, modules and waits of a trace."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from cuda_trace import Machine
from torch import nn
from torch.profiler import ProfilerActivity, profile

from paceline.tables.memory import CATEGORIES, memory, memory_peaks
from paceline.tables.modules import modules
from paceline.tables.trace.columns import arrange, read_trace
from paceline.tables.waits import waits


def test_memory_is_of_the_phase_that_took_it(tmp_path):
    machine = Machine()
    machine.memory(100, 1, 1100, 4096)  # 1000 were there before; outside any phase
    machine.work(10)
    with machine.annotation("paceline.forward"):
        machine.work(10)
        machine.memory(500, 2, 1600, 4096)
        machine.work(10)
    with machine.annotation("paceline.backward"):
        machine.work(10)
        machine.memory(300, 3, 1900, 4096)
        machine.memory(-500, 2, 1400, 4096)  # an activation goes
        machine.memory(-200, 9, 1200, 4096)  # one of before goes, too
        machine.work(10)
    trace = read_trace(machine.write(tmp_path / "trace.json"))
    peak = memory_peaks(trace).row(0, named=True)
    assert (peak["allocated"], peak["before"], peak["forward"], peak["backward"], peak["other"]) == (
        *(1900, 1000, 500, 300),
        100,
    )
    last = memory(trace).row(-1, named=True)
    assert (last["allocated"], last["before"], last["forward"], last["backward"]) == (1200, 800, 0, 300)
    table = memory(trace)
    assert table.select(pl.sum_horizontal(CATEGORIES)).to_series().to_list() == table["allocated"].to_list()


def test_a_long_history_keeps_its_peak(tmp_path):
    machine = Machine()
    for number in range(5000):
        machine.work(5)
        machine.memory(10, number, 10 * (number if number < 4000 else 8000 - number), 1 << 20)
    trace = read_trace(machine.write(tmp_path / "trace.json"))
    table = memory(trace, points=100)
    assert 90 <= table.height <= 100
    assert table["allocated"].max() == memory_peaks(trace)["allocated"][0] == 40_000


def test_modules_get_their_forward_and_their_backward(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.Sequential(nn.Flatten(), nn.Linear(8 * 576, 64)), nn.ReLU())
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(3):
            model(torch.randn(16, 1, 28, 28)).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    table = modules(read_trace(path))
    rows = {row["module"].rsplit("/", 1)[-1].rstrip("0123456789_"): row for row in table.iter_rows(named=True)}
    assert {"Conv2d", "Linear", "ReLU", "Flatten", "Sequential"} <= set(rows)
    assert rows["Linear"]["module"].count("/") == 2
    for name in ("Conv2d", "Linear"):
        assert rows[name]["calls"] == 3
        assert rows[name]["host_forward"] > 0
        assert rows[name]["host_backward"] > 0


def test_without_a_stack_there_are_no_modules(tmp_path):
    machine = Machine()
    with machine.op("aten::mm"):
        machine.launch("sgemm", 10)
    assert modules(read_trace(machine.write(tmp_path / "trace.json"))).height == 0


def test_waits_are_counted_by_line(tmp_path):
    machine = Machine()
    for _ in range(2):
        with machine.step():
            machine.launch("sgemm", 200_000)
            with machine.annotation("paceline.line#/home/me/train.py:12#item"):
                with machine.annotation("paceline.line#/home/me/train.py:12#float"):
                    machine.synchronize("cudaStreamSynchronize")
            machine.synchronize("cudaDeviceSynchronize")
            machine.work(5)
    table = waits(read_trace(machine.write(tmp_path / "trace.json")))
    first = table.row(0, named=True)
    assert (first["what"], first["file"], first["line"], first["calls"]) == ("item", "/home/me/train.py", 12, 1.0)
    assert first["seconds"] == pytest.approx(204e-6, rel=0.02)
    assert table["what"].to_list() == ["item", "cudaDeviceSynchronize"]


def test_ranks_come_from_the_trace_its_name_or_its_place(tmp_path):
    told, named, plain = Machine(3, 4), Machine(), Machine()
    assert read_trace(told.write(tmp_path / "a.json")).rank == 3
    assert read_trace(named.write(tmp_path / "host_rank5.pt.trace.json.gz")).rank == 5
    paths = [plain.write(tmp_path / name) for name in ("x.json", "y.json")]
    assert [trace.rank for trace in arrange([read_trace(path) for path in paths])] == [0, 1]
