"""The tables of `paceline profile`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from paceline.cli.shared.terminal import BAR, bar, time_table
from paceline.cli.shared.told_figures import slowest_words
from paceline.units import count, percent, rate, seconds

if TYPE_CHECKING:
    from paceline.advise.profile import Profile

FIGURES = 48  # terminal columns for the numbers beside a name
DEVICE = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "idle_input": "idle: waiting for input",
    "idle_peer": "idle: waiting for a peer",
    "idle_synchronisation": "idle: after the host waited",
    "idle_host": "idle: the host was late",
    "idle_queue": "idle: launched, not started",
}


def show(console: Console, told: Profile, *, top: int) -> None:
    """Prints all tables."""
    room = max(console.width - FIGURES, 24)  # columns for a name; names of C++ templates are often longer
    console.print()
    which = f"step {told.first}" if told.first == told.last else f"steps {told.first} to {told.last}"
    head = [count(told.ranks, "worker")]
    traced = f"{which} traced" if told.last else "one trace"
    if told.figures.counted:
        head.append(f"{seconds(told.figures.step_time)} a step")
        if told.figures.samples_per_s:
            head.append(f"{rate(told.figures.samples_per_s)} samples/s")
        head.append(f"{traced}: {seconds(told.step)} a step under the profiler")
    else:
        head += [traced, f"{seconds(told.step)} a step"]
    console.print(" · ".join(head), style="bold", soft_wrap=True)
    if slowest_words(told.figures):
        console.print(slowest_words(told.figures), soft_wrap=True)
    console.print()
    console.print(time_table({"total": told.step, **told.host}, "where a traced step's time went", beside=False))
    if told.device is not None:
        console.print()
        console.print(_device_table(told))
    console.print()
    console.print(_op_table(told, top, room))
    if told.kernels:
        console.print()
        console.print(_kernel_table(told, top, room))
    if told.waits:
        console.print()
        console.print(_wait_table(told, top, room))


def _device_table(told: Profile) -> Table:
    table = _table("what the device did", ("a step", "share"))
    table.add_column("")
    for part, words in DEVICE.items():
        took = (told.device or {}).get(part, 0.0)
        ratio = took / told.step if told.step else 0.0
        if took or part == "compute":
            table.add_row(words, seconds(took), percent(ratio), bar(ratio * BAR))
    used = f"{percent(told.tensor_cores, digits=0)} of compute on tensor cores"
    table.add_row("total", seconds(told.step), "", used, style="bold")
    return table


def _op_table(told: Profile, top: int, room: int) -> Table:
    on_device = told.device is not None
    table = _table(
        "op", ("calls", "host", "host, all", *(("device", "device, all", "tensor cores") if on_device else ()))
    )
    for row in told.ops[:top]:
        cells = [_number(row["calls"]), seconds(row["host_self"]), seconds(row["host_total"])]
        if on_device:
            used = row["tensor_cores"]
            cells += [seconds(row["device_self"]), seconds(row["device_total"])]
            cells.append(percent(used, digits=0) if row["eligible"] and used is not None else "")
        table.add_row(_cut(row["name"], room), *cells)
    return table


def _kernel_table(told: Profile, top: int, room: int) -> Table:
    table = _table("kernel", ("kind", "calls", "time", "each", "share"))
    for row in told.kernels[:top]:
        cells = [row["kind"], _number(row["calls"]), seconds(row["total"]), seconds(row["mean"]), percent(row["share"])]
        table.add_row(_cut(row["name"], room), *cells)
    return table


def _wait_table(told: Profile, top: int, room: int) -> Table:
    waits = "the host waits for the device" if told.device is not None else "values are read"
    table = _table(f"where {waits}", ("call", "calls", "a step"))
    for row in told.waits[:top]:
        where = f"{row['file']}:{row['line']}" if row["file"] else "(unknown line)"
        table.add_row(_cut(where, room, keep_end=True), row["what"], _number(row["calls"]), seconds(row["seconds"]))
    return table


def _table(first: str, others: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cut(text: str, room: int, *, keep_end: bool = False) -> str:
    text = "".join(sign if sign.isprintable() else "?" for sign in text)
    if len(text) <= room:
        return text
    return "…" + text[-room + 1 :] if keep_end else text[: room - 1] + "…"


def _number(value: Any) -> str:
    return f"{value:,.0f}" if value >= 10 or abs(value - round(value)) < 0.005 else f"{value:.2g}"
