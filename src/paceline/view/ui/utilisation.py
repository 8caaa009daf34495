"""Charts of GPU and CPU utilisation, from `devices.jsonl`."""

from __future__ import annotations

import polars as pl

from paceline.charts.chart import Axis, Chart, Line
from paceline.charts.thin import thinned
from paceline.errors import RecordError
from paceline.reports.report import Sentence
from paceline.tables.devices import gpu_samples, host_samples
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block

# Of GPUs, and of the ranks that use them. series1 is the run.
COLOURS = ("series2", "series3", "series4", "series5", "series6", "series7", "series8")
SHARE = Axis(title="share", share=True, limits=(0, 1.05))
SAMPLED = "Sampled twice a second by the launcher."


def utilisation(record: Opened) -> list[Block]:
    """Utilisation of the GPUs, or of the CPU cores if there are no GPUs. Empty without samples."""
    if not record.has_samples:
        return []
    try:
        record.prove_samples()
    except RecordError as error:
        return [Sentence(error.message, "bad", error.advice)]
    gpus = gpu_samples(record.folder)
    if gpus.height and gpus["utilisation"].is_not_null().any():
        return [
            gpu_chart(
                gpus, "utilisation", "GPU utilisation", "Share of time in which a kernel ran, as the driver reports."
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
            caption=f"Utilisation of all cores of the host, by any process, and of the busiest core. {SAMPLED}",
            x=Axis(title="seconds"),
            y=SHARE,
            series=[
                thinned(Line(name="all cores", x=times, y=host["cpu"].to_list(), colour="ink")),
                thinned(Line(name="busiest core", x=times, y=host["busiest"].to_list(), colour="quiet")),
            ],
        )
    ]


def gpu_chart(gpus: pl.DataFrame, column: str, title: str, how: str) -> Chart:
    """One line per GPU, for the first 16 GPUs."""
    zero = float(gpus["at"].min() or 0.0)  # type: ignore[arg-type]
    lines = []
    for number, ((index,), table) in enumerate(gpus.group_by("index", maintain_order=True)):
        if number < 16:
            times = [at - zero for at in table["at"]]
            line = Line(name=f"GPU {index}", x=times, y=table[column].to_list(), colour=COLOURS[number % 7])
            lines.append(thinned(line))
    return Chart(
        name=f"gpu-{column}",
        title=title,
        caption=f"{how} {SAMPLED}",
        x=Axis(title="seconds"),
        y=SHARE if column == "utilisation" else Axis(zero=True),
        series=lines,
    )
