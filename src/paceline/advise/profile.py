"""The contents of a profile: where a step's time went, by op, kernel and line.

This file does not depend on how a profile is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Finding
from paceline.advise.registry import find_all
from paceline.errors import UsageError
from paceline.record.phases import PHASES
from paceline.tables.figures import Figures, columns_in, figures
from paceline.tables.kernels import kernels
from paceline.tables.ops import ops
from paceline.tables.records import Tables
from paceline.tables.timeline import CAUSES, timeline
from paceline.tables.trace.steps import breakdown
from paceline.tables.waits import waits

DEVICE = ("compute", "communication", "copy", *(f"idle_{cause}" for cause in CAUSES))
Row = dict[str, Any]


class Profile(msgspec.Struct, kw_only=True):
    """A profile in numbers. Times are seconds per step: means over the traced steps and ranks."""

    ranks: int
    steps: int  # traced, per rank
    first: int
    last: int
    step: float  # wall time of a traced step: the profiler makes it longer than `figures.step_time`
    host: dict[str, float | None]  # the phases, which add up to `step`; None: not measured
    device: dict[str, float] | None  # the device's time, which also adds up to `step`; None without a device
    tensor_cores: float  # fraction of the device's compute that ran on tensor cores
    iterations: list[Row]  # every step of every rank: rank, step, wall, phases
    ops: list[Row]  # most time first; per step of one rank
    kernels: list[Row]
    waits: list[Row]
    findings: list[Finding] = []  # largest gain first
    figures: Figures = Figures()  # of the steps that were not traced; empty for traces from elsewhere


def summarize(tables: Tables) -> Profile:
    """UsageError if nothing was traced."""
    if not tables.paths:
        made = _integer(tables.steps["step"].max())
        raise UsageError(
            f"No step was traced: the script ended after {made} steps, before its warm-up was over.",
            advice="Let the script make more steps, or set the number of steps to skip: paceline profile --warm-up 2 …",
        )
    phases = tables.over_ranks(breakdown)
    if not phases.height:
        names = ", ".join(path.name for path in tables.paths)
        raise UsageError(
            f"{names} has no events.", advice="Give a torch.profiler trace that contains at least one step."
        )
    steps = max(phases.height // len(tables.traces), 1)
    calls = len(tables.traces) * steps
    device = tables.over_ranks(timeline)
    return Profile(
        ranks=len(tables.traces),
        steps=steps,
        first=_integer(phases["step"].min()),
        last=_integer(phases["step"].max()),
        step=_mean(phases, "wall"),
        host={phase: _mean(phases, phase) if phases[phase].count() else None for phase in PHASES},
        device={part: _mean(device, part) for part in DEVICE} if device.height else None,
        tensor_cores=_mean(device, "tensor") / (_mean(device, "compute") or 1.0) if device.height else 0.0,
        iterations=phases.to_dicts(),
        ops=_per_step(tables.over_ranks(ops).filter(pl.col("kind") == "op"), calls),
        kernels=_kernels(tables.over_ranks(kernels), calls),
        waits=_waits(tables.over_ranks(waits), len(tables.traces)),
        findings=find_all(Evidence(tables)),
        figures=figures(columns_in(tables.steps)),
    )


def _mean(table: pl.DataFrame, column: str) -> float:
    mean = table[column].mean()
    return float(mean) if isinstance(mean, int | float) else 0.0


def _integer(value: Any) -> int:
    return int(value) if value is not None else 0


def _per_step(table: pl.DataFrame, calls: int) -> list[Row]:
    """Ops over all ranks, per step of one rank."""
    figures = ["calls", "host_self", "host_total", "kernels", "device_self", "device_total"]
    return (
        table.with_columns(tensor=pl.col("tensor_cores").fill_null(0.0) * pl.col("device_self"))
        .group_by("name")
        .agg(
            *(pl.col(name).sum() / calls for name in figures),
            pl.col("eligible").first(),
            pl.col("tensor").sum() / calls,
        )
        .with_columns(tensor_cores=pl.when(pl.col("device_self") > 0).then(pl.col("tensor") / pl.col("device_self")))
        .drop("tensor")
        .sort(["device_self", "host_self", "name"], descending=[True, True, False])
        .to_dicts()
    )


def _kernels(table: pl.DataFrame, calls: int) -> list[Row]:
    return (
        table.group_by("name", "kind", "tensor_cores")
        .agg(
            calls=pl.col("calls").sum() / calls,
            total=pl.col("total").sum() / calls,
            mean=pl.col("total").sum() / pl.col("calls").sum(),
        )
        .with_columns(share=pl.col("total") / pl.col("total").sum())
        .sort(["total", "name"], descending=[True, False])
        .to_dicts()
    )


def _waits(table: pl.DataFrame, ranks: int) -> list[Row]:
    return (
        table.group_by("what", "file", "line")
        .agg(calls=pl.col("calls").sum() / ranks, seconds=pl.col("seconds").sum() / ranks)
        .with_columns(pl.col("file").map_elements(_short, return_dtype=pl.String))
        .sort(["seconds", "file", "line"], descending=[True, False, False])
        .to_dicts()
    )


def _short(path: str) -> str:
    """The path relative to the current folder, if it is below that."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
