"""The page of memory over the traced steps, by the phase that allocated it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from paceline.charts.chart import Area, Axis, Chart, Label, Mark, Rule
from paceline.record.phases import PHASES
from paceline.reports.report import Column, Sentence
from paceline.tables.memory import CATEGORIES, memory, memory_peaks
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.steps import windows
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid

MOST_LABELS = 5  # names of steps: more have no room on a phone
COLOURS = {"before": "other", **{phase: phase for phase in PHASES}, "other": "idle"}
MEANS = {
    "before": "allocated before the trace began: mostly weights and optimizer state",
    "forward": "allocated in the forward pass: activations",
    "backward": "allocated in the backward pass: gradients",
    "optimizer": "allocated in the optimizer step",
}


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    peaks = record.once("Finding the peaks of memory", lambda: record.tables.over_ranks(memory_peaks))
    blocks: list[Block] = []
    if not peaks.height:
        blocks.append(Sentence("The traces contain no memory events."))
        return Page(title="Memory", blocks=blocks)
    first = record.tables.traces[0]
    table = record.once("Following the memory", lambda: memory(first, points=800))
    for (device,), rows in table.group_by("device", maintain_order=True):
        name = "the host" if device == -1 else f"device {device}"
        blocks.append(_chart(rows, f"Memory of {name}, rank {first.rank}", f"memory-{device}", first))
    blocks.append(
        Grid(
            name="peaks",
            title="At the peak",
            columns=(
                Column("rank", "rank", "Rank of the worker.", "count"),
                Column("device", "of", "The host, or the number of the GPU."),
                Column("time", "at", "Seconds since the trace's first event.", "seconds"),
                Column("allocated", "allocated", "Bytes in use, of torch's allocator.", "bytes"),
                Column("reserved", "reserved", "Bytes that torch's allocator reserved.", "bytes", optional=True),
                *(
                    Column(
                        name,
                        name,
                        f"Part of allocated: {MEANS.get(name, f'allocated in the phase {name}')}.",
                        "bytes",
                        optional=True,
                    )
                    for name in CATEGORIES
                ),
            ),
            rows=[
                row | {"device": "host" if row["device"] == -1 else f"GPU {row['device']}"} for row in peaks.to_dicts()
            ],
        )
    )
    return Page(title="Memory", blocks=blocks)


def _step_marks(trace: Trace, most: float) -> list[Mark]:
    """Where each traced step begins; the names are at the height `most`."""
    if not trace.events.height:
        return []
    zero = int(trace.events["start"].to_numpy().min())
    begins = windows(trace).sort("start").select("step", (pl.col("start") - zero) / 1e9)
    every = -(-begins.height // MOST_LABELS)
    marks: list[Mark] = [Rule(axis="x", at=at, colour="quiet", dash="dashed") for at in begins["start"]]
    named = begins.gather_every(every).iter_rows()
    return [*marks, *(Label(x=at, y=most, text=f"step {step}", side="below right") for step, at in named)]


def _chart(rows: pl.DataFrame, title: str, name: str, trace: Trace) -> Chart:
    times = rows["time"].to_list()
    most = max(rows["allocated"].to_list())
    unit, scale = ("GiB", 1 << 30) if most >= 1 << 30 else ("MiB", 1 << 20)
    return Chart(
        name=name,
        title=title,
        caption="Every allocation and release of torch's allocator, by the phase of the allocation. "
        + "; ".join(f"{key}: {value}" for key, value in MEANS.items())
        + ".",
        x=Axis(title="time since the trace began", time=True),
        y=Axis(title=unit, zero=True),
        series=[
            Area(name=category, x=times, y=(rows[category] / scale).to_list(), colour=COLOURS[category])
            for category in CATEGORIES
            if rows[category].abs().sum() > 0
        ],
        marks=_step_marks(trace, most / scale),
        height=320,
        wide=True,
    )
