"""How busy the host, its GPUs and the workers were: `devices.jsonl`, as charts."""

from __future__ import annotations

import polars as pl

from paceline.errors import RecordError
from paceline.tables.devices import gpu_samples, host_samples
from paceline.view.records.record import Opened
from paceline.view.ui import charts
from paceline.view.ui.blocks import Block, Chart, Note

COLOURS = ("backward", "optimizer", "communication", "data", "forward", "evaluation", "other")
SAMPLED = "Sampled twice a second by the launcher, beside the workers."


def utilisation(record: Opened) -> list[Block]:
    """Of GPUs where there are some, else of the cores. Nothing where nothing was sampled."""
    if not record.has_samples:
        return []
    try:
        record.prove_samples()
    except RecordError as error:
        return [Note(text=error.message, tone="bad", advice=error.advice)]
    gpus = gpu_samples(record.folder)
    if gpus.height and gpus["utilisation"].is_not_null().any():
        return [
            gpu_chart(
                gpus, "utilisation", "GPU utilisation", "Share of time in which a kernel ran, as the driver counts."
            )
        ]
    host = host_samples(record.folder)
    if not host.height:
        return []
    times = [at - host["at"][0] for at in host["at"]]
    return [
        Chart(
            name="cpu",
            title="CPU utilisation",
            how=f"Share of the host's cores that were busy, with anything; and of the busiest core. {SAMPLED}",
            data=[
                charts.line(times, host["cpu"].to_list(), name="all cores", colour="backward"),
                charts.line(times, host["busiest"].to_list(), name="busiest core", colour="data"),
            ],
            layout=charts.axes("seconds", "share", yaxis={"tickformat": ".0%", "range": [0, 1.05]}),
        )
    ]


def gpu_chart(gpus: pl.DataFrame, column: str, title: str, how: str) -> Chart:
    """A line for each GPU."""
    zero = float(gpus["at"].min() or 0.0)  # type: ignore[arg-type]
    lines = []
    for number, ((index,), table) in enumerate(gpus.group_by("index", maintain_order=True)):
        if number < 16:
            times = [at - zero for at in table["at"]]
            lines.append(charts.line(times, table[column].to_list(), name=f"GPU {index}", colour=COLOURS[number % 7]))
    share = column == "utilisation"
    axis = {"tickformat": ".0%", "range": [0, 1.05]} if share else {}
    return Chart(
        name=f"gpu-{column}",
        title=title,
        how=f"{how} {SAMPLED}",
        data=lines,
        layout=charts.axes("seconds", "share" if share else "", yaxis=axis),
    )
