"""Computes a run's key figures from its steps: the same figures as `paceline run` prints."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from paceline.record.phases import PHASES
from paceline.tables.iterations import warm_up
from paceline.view.records.record import Opened


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasures:
    """`step` maps each phase, and `total`, to mean seconds. None means that the run has no such measurement."""

    warm_up: int
    steps: int
    samples: int
    samples_per_s: float | None
    median_step: float | None
    step: dict[str, float]
    first_loss: float | None
    last_loss: float | None
    memory: int


def measure(record: Opened) -> RunMeasures:
    steps = record.steps.frame
    if not steps.height:
        nothing = dict.fromkeys(("total", *PHASES), 0.0)
        return RunMeasures(
            warm_up=0, steps=0, samples=0, samples_per_s=None, median_step=None, step=nothing,
            first_loss=None, last_loss=None, memory=0,
        )  # fmt: skip
    first = steps.filter(pl.col("rank") == pl.col("rank").min())
    dropped = warm_up(steps)
    settled = first[dropped:]
    total = float(settled["total"].sum())
    everything = pl.concat([part[dropped:] for part in steps.partition_by("rank")])
    split = everything.filter("split") if everything["split"].any() else everything
    losses = first["loss"].drop_nulls()
    return RunMeasures(
        warm_up=dropped,
        steps=first.height,
        samples=int(first["samples"].sum()),
        samples_per_s=float(settled["samples"].sum()) / total if total > 0 else None,
        median_step=_number(settled["total"].median()),
        step={part: _number(split[part].mean()) or 0.0 for part in ("total", *PHASES)},
        first_loss=losses[0] if len(losses) else None,
        last_loss=losses[-1] if len(losses) else None,
        memory=int(_number(steps["memory"].max()) or 0),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
