"""The pages of ops and of op types: their time on the host and on the device."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.charts.chart import Axis, Bars, Chart
from paceline.reports.profile import FIGURES, STEP, figures_of, name_column, ops_table
from paceline.reports.report import Column, Row, Sentence
from paceline.tables.ops import op_types, ops
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid
from paceline.view.ui.links import href
from paceline.view.ui.traced import device_split, head, profile_of

TOP = 12  # ops in the chart
MOST = 20_000  # rows


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    rows = with_share(profile_of(record).ops)
    blocks: list[Block] = [*head(record), *device_split(record)]
    if rows:
        blocks.append(top_chart("Where the time goes", rows))
    blocks.append(Grid.of(ops_table(profile_of(record), rows)))
    if asked.get("by") == "shapes":
        blocks.append(_by_shapes(record))
    elif "report" not in asked:
        blocks.append(
            Sentence(
                text="The time of an op depends on the shapes of its tensors.",
                links=[("Split by shapes", f"{href('ops', record.name)}?by=shapes#grid-shapes")],
            )
        )
    return Page(title="Ops", blocks=blocks)


def build_types(record: Opened, asked: Mapping[str, str]) -> Page:
    steps = max(profile_of(record).steps, 1) * max(profile_of(record).ranks, 1)
    table = (
        record.once("Finding the types of ops", lambda: record.tables.over_ranks(op_types))
        .group_by("type")
        .agg(
            ops=pl.col("ops").max(),
            calls=pl.col("calls").sum() / steps,
            host_self=pl.col("host_self").sum() / steps,
            device_self=pl.col("device_self").sum() / steps,
        )
        .sort(["device_self", "host_self", "type"], descending=[True, True, False])
    )
    rows = with_share(table.to_dicts())
    columns = (
        Column("type", "type", "Group of similar ops, derived from their names."),
        Column("ops", "ops", "Number of different ops.", "count"),
        *(column for column in FIGURES if column.key in ("calls", "host_self", "device_self", "share")),
    )
    blocks: list[Block] = [*head(record)]
    if rows:
        blocks.append(top_chart("By type", rows, key="type"))
    blocks.append(Grid(name="types", title="Types of ops", columns=columns, rows=rows))
    return Page(title="Op types", blocks=blocks)


def with_share(rows: list[dict[str, object]]) -> list[Row]:
    """Adds each row's share of the total self time."""
    time = time_of(rows)
    total = sum(_number(row, time) for row in rows)
    return [{**row, "share": _number(row, time) / total if total else 0.0} for row in rows]


def time_of(rows: list[dict[str, object]]) -> str:
    return "device_self" if any(_number(row, "device_self") > 0 for row in rows) else "host_self"


def _number(row: Mapping[str, object], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def top_chart(title: str, rows: list[Row], *, key: str = "name") -> Chart:
    """The rows with the most time as bars, the longest on top."""
    time = time_of([dict(row) for row in rows])
    top = sorted(rows, key=lambda row: -_number(row, time))[:TOP]
    where = "device" if time == "device_self" else "host"
    return Chart(
        name="top",
        title=title,
        caption=f"Self time on the {where}. {STEP}",
        x=Axis(title=f"ms per step on the {where}"),
        y=Axis(kind="category", reverse=True),
        series=[
            Bars(
                name="self time",
                x=[_number(row, time) * 1e3 for row in top],
                y=[str(row[key]) for row in top],
                colour="kernel" if time == "device_self" else "series1",
                horizontal=True,
            )
        ],
        height=max(180, 60 + 24 * len(top)),
        wide=True,
    )


def _by_shapes(record: Opened) -> Grid:
    profile = profile_of(record)
    steps = max(profile.steps * profile.ranks, 1)
    table = (
        record.once(
            "Splitting by shapes", lambda: record.tables.over_ranks(lambda trace: _strings(ops(trace, by="shapes")))
        )
        .filter(pl.col("kind") == "op")
        .group_by("name", "shapes", "types")
        .agg(
            *(
                pl.col(name).sum() / steps
                for name in ("calls", "host_self", "host_total", "kernels", "device_self", "device_total")
            ),
            pl.col("eligible").first(),
            pl.col("tensor_cores").mean(),
        )
        .sort(["device_self", "host_self", "name"], descending=[True, True, False])
        .head(MOST)
    )
    rows = with_share(table.to_dicts())
    columns = (
        name_column("op"),
        Column("shapes", "shapes", "Shapes of the op's tensors, as the profiler recorded them."),
        Column("types", "types", "Data types of the op's tensors, as the profiler recorded them."),
        *figures_of(profile),
    )
    return Grid(name="shapes", title="Ops by shapes", columns=columns, rows=rows)


def _strings(table: pl.DataFrame) -> pl.DataFrame:
    """Casts to strings, because the categorical columns of different traces cannot be combined."""
    return table.with_columns(pl.col("shapes", "types").cast(pl.String))
