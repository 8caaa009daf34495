"""The page of kernels, and of the ops that launched them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.tables.kernels import kernels_by_op
from paceline.tables.launches import launches
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Column, Grid
from paceline.view.ui.traced import STEP, device_split, head, name_column, profile_of

MOST = 20_000  # rows
_TIME = "From the start to the end of the kernel, by the device's clock."
CALLS = Column(key="calls", title="calls", how=f"Number of runs. {STEP}", kind="count")
TOTAL = Column(key="total", title="total", how=f"{_TIME} {STEP}", kind="seconds")
KIND = Column(key="kind", title="kind", how="Compute, communication or copy, derived from the name.")
TENSOR = Column(
    key="tensor_cores",
    title="tensor cores",
    how="Whether the kernel uses tensor cores, derived from its name.",
    kind="flag",
)


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
        Grid(
            name="kernels",
            title=f"{len(profile.kernels):,} kernels and copies",
            columns=(
                name_column("kernel"),
                KIND,
                CALLS,
                TOTAL,
                Column(key="mean", title="mean", how=f"Mean of one call. {_TIME}", kind="seconds"),
                Column(
                    key="share",
                    title="share",
                    how="Share of the time of all kernels and copies.",
                    kind="share",
                    bar=True,
                ),
                TENSOR,
            ),
            rows=profile.kernels,
            empty="No kernel was traced: the run had no device.",
        ),
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
            Column(key="rank", title="rank", how="Rank of the worker.", kind="count"),
            Column(key="device", title="device", how="As the trace numbers it.", kind="count"),
            Column(
                key="kernels", title="kernels per step", how="Kernels launched within the traced steps.", kind="count"
            ),
            Column(key="median", title="median kernel", how=_TIME, kind="seconds"),
            Column(
                key="small", title="below 10 µs", how="Share of the kernels that are shorter than 10 µs.", kind="share"
            ),
            Column(key="small_time", title="time below 10 µs", how="Their share of all kernel time.", kind="share"),
            Column(key="launch", title="a launch", how="Median time of the launch call on the host.", kind="seconds"),
            Column(
                key="late",
                title="idle, host late",
                how="Share of the traced steps in which the device idled because the host had launched nothing.",
                kind="share",
                bar=True,
            ),
        ),
        rows=table.to_dicts(),
    )
