"""The page of devices: utilisation, memory, power and temperature during the run, and activity in the traced steps."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.charts.chart import Axis, Chart, Line
from paceline.charts.thin import thinned
from paceline.reports.report import Column
from paceline.tables.devices import gpu_samples, host_samples, worker_samples
from paceline.tables.timeline import CAUSES, overlap, timeline
from paceline.view.records.contents import has_traces, uses_devices
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid
from paceline.view.ui.traced import IDLE, device_split, profile_of
from paceline.view.ui.utilisation import COLOURS, SAMPLED, gpu_chart, utilisation

FLOWS = {"read": "series6", "written": "series7", "received": "series8", "sent": "series1"}  # and their colours


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    blocks: list[Block] = []
    if has_traces(record) and profile_of(record).device is not None:
        blocks += [*device_split(record), _devices(record), _overlap(record)]
    if record.has_samples:
        blocks += utilisation(record)
        blocks += _gpus(record)
        blocks += _host(record)
    return Page(title="Devices" if uses_devices(record) else "Load of the machine", blocks=blocks)


def _devices(record: Opened) -> Grid:
    parts = ("compute", "communication", "copy", *(f"idle_{cause}" for cause in CAUSES))
    table = record.once("Making the time line", lambda: record.tables.over_ranks(timeline))
    shown = (
        table.group_by("rank", "device", maintain_order=True)
        .agg(
            pl.col("wall").mean(),
            *(pl.col(part).mean() for part in parts),
            pl.col("tensor").mean(),
            pl.col("idle").mean(),
        )
        .with_columns(busy=1 - pl.col("idle") / pl.col("wall"))
    )
    once = "Mean of the traced steps; each moment counts once: compute, else communication, else copy, else idle."
    reasons = {f"idle_{cause}": f"Idle: {why}." for cause, why in IDLE.items()}
    return Grid(
        name="devices",
        title="Devices in the traced steps",
        columns=(
            Column("rank", "rank", "Rank of the worker.", "count"),
            Column("device", "device", "As the trace numbers it.", "count"),
            Column("wall", "step time", "Mean wall time of the traced steps.", "seconds"),
            Column("busy", "busy", "Share of the step in which the device was not idle.", "share", bar=True),
            *(
                Column(part, part.replace("_", ": "), f"{reasons.get(part, '')} {once}".strip(), "seconds")
                for part in parts
            ),
            Column("tensor", "tensor cores", f"Compute time on tensor cores. {once}", "seconds"),
        ),
        rows=shown.to_dicts(),
    )


def _overlap(record: Opened) -> Grid:
    return Grid(
        name="overlap",
        title="Communication hidden under compute",
        columns=(
            Column("rank", "rank", "Rank of the worker.", "count"),
            Column("device", "device", "As the trace numbers it.", "count"),
            *(
                Column(key, key, f"Over the whole trace: {how}", "seconds")
                for key, how in (
                    ("communication", "time in which a collective's kernel ran."),
                    ("hidden", "the part of communication that overlaps compute."),
                    ("exposed", "the part of communication without compute."),
                )
            ),
            Column("share", "share hidden", "hidden divided by communication.", "share", bar=True),
        ),
        rows=record.once("Finding the overlap", lambda: record.tables.over_ranks(overlap)).to_dicts(),
        empty="No collective was traced.",
    )


def _gpus(record: Opened) -> list[Block]:
    gpus = gpu_samples(record.folder)
    wanted = (
        ("memory", "GPU memory, GiB", "Memory in use by all processes, as the driver reports.", 1 / (1 << 30)),
        ("power", "GPU power, W", "Power draw, as the driver reports.", 1.0),
        ("clock", "GPU clock, GHz", "Clock of the multiprocessors. A drop under load means throttling.", 1e-9),
        ("temperature", "GPU temperature, °C", "Temperature, as the driver reports.", 1.0),
    )
    return [
        gpu_chart(gpus.with_columns(pl.col(column) * scale), column, title, how)
        for column, title, how, scale in wanted
        if gpus.height and gpus[column].is_not_null().any()
    ]


def _host(record: Opened) -> list[Block]:
    host, workers = host_samples(record.folder), worker_samples(record.folder)
    if not host.height:
        return []
    zero = host["at"][0]
    times = [at - zero for at in host["at"]]
    flows = [
        thinned(Line(name=name, x=times, y=(host[name] / 1e6).to_list(), colour=colour))
        for name, colour in FLOWS.items()
    ]
    blocks: list[Block] = [
        Chart(
            name="flows",
            title="Disks and networks",
            caption=f"Transfer rates of the whole host; networks without the loopback interface. {SAMPLED}",
            x=Axis(title="seconds"),
            y=Axis(title="MB/s", zero=True),
            series=flows,
        )
    ]
    lines = [
        thinned(
            Line(
                name=f"rank {rank}",
                x=[at - zero for at in table["at"]],
                y=table["cpu"].to_list(),
                colour=COLOURS[int(rank) % 7],
            )
        )
        for (rank,), table in workers.group_by("rank", maintain_order=True)
        if isinstance(rank, int) and rank < 16
    ]
    if lines:
        blocks.append(
            Chart(
                name="worker-cpu",
                title="Busy cores per worker",
                caption=f"CPU time of each worker and its loader processes, divided by wall time. {SAMPLED}",
                x=Axis(title="seconds"),
                y=Axis(title="cores", zero=True),
                series=lines,
            )
        )
    return blocks
