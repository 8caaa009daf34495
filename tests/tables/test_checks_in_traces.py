"""Paceline's own checks in a trace: drawn in the time line, and counted by no table."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest
from cuda_trace import Machine
from rich.console import Console

from paceline.advise.profile import summarize
from paceline.record.phases import AT_SEAMS, CHECK
from paceline.reports.profile import report
from paceline.reports.terminal import show
from paceline.tables.kernels import kernels, launches
from paceline.tables.ops import ops
from paceline.tables.records import read_files
from paceline.tables.timeline import timeline
from paceline.tables.trace.columns import Trace, read_trace
from paceline.tables.trace.steps import breakdown, windows
from paceline.tables.waits import waits

MS = 1_000_000  # nanoseconds


def layer(machine: Machine) -> None:
    with machine.op("aten::mm"):
        machine.launch("gemm", 2 * MS)
    machine.synchronize()


def check(machine: Machine) -> None:
    """Tries the layer out, reads a value and waits for another worker."""
    with machine.annotation(CHECK):
        layer(machine)
        with machine.annotation("paceline.line#/home/me/train.py:66#item"):
            machine.synchronize()
        machine.work(50 * MS)
        with machine.annotation(CHECK):
            machine.work(30 * MS)


def traced(folder: Path, *checked: int) -> Trace:
    """Three steps, of which some have a check in their forward."""
    machine = Machine()
    for number in range(1, 4):
        with machine.step():
            with machine.annotation("paceline.forward"):
                if number in checked:
                    check(machine)
                layer(machine)
            machine.work(1 * MS)
    path = folder / "trace.rank0.json.gz"
    machine.write(path)
    return read_trace(path)


def only_ops(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("kind") == "op")


@pytest.fixture
def without(tmp_path: Path) -> Trace:
    return traced(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    (tmp_path / "checked").mkdir()
    return traced(tmp_path / "checked", 2)


def test_steps_and_phases_leave_checks_out(trace: Trace, without: Trace) -> None:
    assert breakdown(trace).rows() == breakdown(without).rows()
    assert timeline(trace).rows() == timeline(without).rows()


def test_ops_kernels_launches_and_waits_in_a_check_are_not_counted(trace: Trace, without: Trace) -> None:
    for table in (ops, kernels, launches, waits):
        told, expected = table(trace), table(without)
        if table is ops:
            told, expected = only_ops(told), only_ops(expected)
        assert told.rows() == expected.rows()


def test_the_time_of_a_check_is_its_own(trace: Trace, without: Trace) -> None:
    def own(trace: Trace, name: str) -> float:
        return float(ops(trace).filter(pl.col("name") == name)["host_self"].sum())

    assert own(trace, "paceline.forward") == pytest.approx(own(without, "paceline.forward"))
    assert own(trace, CHECK) == pytest.approx(82e-3, rel=0.01)


def test_the_time_line_still_has_them(trace: Trace) -> None:
    assert (trace.events["name"].cast(pl.String) == CHECK).sum() == 2
    steps = windows(trace)
    assert steps["end"][1] - steps["start"][1] > 80 * MS


def test_phases_at_seams_that_were_not_measured_are_null_and_no_zeros(tmp_path: Path) -> None:
    """A script that distributes itself is called past the seams of its model: only its optimizer has marks."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            layer(machine)
            with machine.annotation("paceline.optimizer"):
                machine.work(1 * MS)
    path = tmp_path / "trace.rank0.json.gz"
    machine.write(path)
    told = summarize(read_files([path]))
    assert [part for part, took in told.host.items() if took is None] == [*AT_SEAMS]
    assert told.host["optimizer"] == pytest.approx(1e-3, rel=0.1)
    assert told.host["optimizer"] + told.host["other"] == pytest.approx(told.step)
    assert [row["forward"] for row in told.iterations] == [None] * 3
    shown = Console(file=io.StringIO(), width=100)
    show(shown, report(told, top=3))
    assert shown.file.getvalue().count("not measured") == 3
