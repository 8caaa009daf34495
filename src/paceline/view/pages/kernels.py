"""The page of kernels, and of the ops that launched them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.reports.profile import CALLS, KERNEL, KIND, TENSOR, TOTAL, kernels_table, name_column
from paceline.reports.report import Column
from paceline.tables.kernels import kernels_by_op, launches
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid
from paceline.view.ui.traced import device_split, head, profile_of

LATE = "Share of the traced steps in which the device idled because the host had launched nothing."

MOST = 20_000  # rows


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    profile = profile_of(record)
    steps = max(profile.steps * profile.ranks, 1)
    by_op = (
        record.once("Finding the kernels", lambda: record.tables.over_ranks(kernels_by_op))
        .group_by("op", "kernel", "kind", "tensor_cores")
        .agg(calls=pl.col("calls").sum() / steps, total=pl.col("total").sum() / steps)
        .sort(["total", "op", "kernel"], descending=[True, False, False])
        .head(MOST)
    )
    small = record.once("Finding the launches", lambda: record.tables.over_ranks(launches))
    blocks: list[Block] = [
        *head(record),
        *device_split(record),
        Grid.of(kernels_table(profile.kernels)),
        Grid(
            name="by-op",
            title="Kernels by op",
            columns=(name_column("op", "op"), name_column("kernel", "kernel"), KIND, CALLS, TOTAL, TENSOR),
            rows=by_op.to_dicts(),
            about="Kernels by the op that launched them. The op is empty if the trace does not name it.",
        ),
    ]
    if small.height:
        blocks.insert(2, _launches(small))
    return Page(title="Kernels", blocks=blocks)


def _launches(table: pl.DataFrame) -> Grid:
    return Grid(
        name="launches",
        title="Launches",
        about="Many small kernels keep the host busier with launching than the device with computing.",
        columns=(
            Column("rank", "rank", "Rank of the worker.", "count"),
            Column("device", "device", "As the trace numbers it.", "count"),
            Column("kernels", "kernels per step", "Kernels launched within the traced steps.", "count"),
            Column("median", "median kernel", KERNEL, "seconds"),
            Column("small", "below 10 µs", "Share of the kernels that are shorter than 10 µs.", "share"),
            Column("small_time", "time below 10 µs", "Their share of all kernel time.", "share"),
            Column("launch", "a launch", "Median time of the launch call on the host.", "seconds"),
            Column("late", "idle, host late", LATE, "share", bar=True),
        ),
        rows=table.to_dicts(),
    )
