"""The page of parameter servers: how stale the workers' updates were, and what each server did."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paceline.charts.chart import Axis, Bars, Chart
from paceline.record.servers import ServerReport, read_reports
from paceline.units import count
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Page
from paceline.view.ui.grid import Column, Grid

MOST = 200  # bars; staler updates share the last one
SERVERS = 64


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    reports = read_reports(record.folder)[:SERVERS]
    blocks: list[Block] = [Note(text=text, tone="warn") for text in _troubles(reports)]
    if any(report.staleness for report in reports):
        blocks.append(histogram(reports))
    blocks.append(_grid(reports))
    return Page(title="Servers", blocks=blocks)


def histogram(reports: list[ServerReport]) -> Chart:
    """The staleness of all updates: one bar for each staleness, and one colour for each server."""
    stalest = min(MOST, max(max(report.staleness, default=0) for report in reports))
    series = []
    for report in reports:
        updates = [0] * (stalest + 1)
        for staleness, number in report.staleness.items():
            updates[min(max(staleness, 0), stalest)] += number
        series.append(
            Bars(
                name=f"server {report.server}",
                x=[f"{at}+" if at == MOST else str(at) for at in range(stalest + 1)],
                y=[float(number) for number in updates],
                colour=("accent", "ink")[report.server % 2],
            )
        )
    return Chart(
        name="staleness",
        title="Staleness of the updates",
        caption="How many other updates a server made between a worker's pull and the update by the gradients that the "
        "worker computed from it. 0 is what a synchronous run has.",
        x=Axis(title="staleness", kind="category"),
        y=Axis(title="updates", zero=True),
        series=series,
        stacked=True,
        wide=True,
    )


def _troubles(reports: list[ServerReport]) -> list[str]:
    found = []
    for report in reports:
        if report.starts > 1:
            lost = f"{count(report.lost, 'update')} {'was' if report.lost == 1 else 'were'} lost"
            found.append(f"Server {report.server} was started {report.starts} times; the last time, {lost}.")
        if report.refused:
            found.append(
                f"Server {report.server} refused {count(report.refused, 'connection')} without the run's keys."
            )
    return found


def _grid(reports: list[ServerReport]) -> Grid:
    rows = []
    for report in reports:
        made = sum(report.staleness.values())
        mean = sum(at * number for at, number in report.staleness.items()) / made if made else None
        rows.append(msgspec.to_builtins(report) | {"mean": mean, "most": max(report.staleness, default=None)})
    return Grid(
        name="servers",
        title=count(len(reports), "server"),
        columns=(
            Column(key="server", title="server", how="Number of the server.", kind="count"),
            Column(key="bytes", title="parameters", how="Size of the parameters that the server holds.", kind="bytes"),
            Column(key="updates", title="updates", how="Updates made.", kind="count"),
            Column(key="mean", title="mean staleness", how="Mean over the server's updates.", kind="number"),
            Column(key="most", title="most", how="The largest staleness of an update.", kind="count"),
            Column(
                key="dropped",
                title="dropped",
                how="Gradients that came after their round.",
                kind="count",
                optional=True,
            ),
            Column(
                key="duplicates",
                title="sent twice",
                how="Pushes that came twice; applied once.",
                kind="count",
                optional=True,
            ),
            Column(key="starts", title="starts", how="How often the server was started.", kind="count"),
            Column(key="lost", title="lost", how="Updates lost in the last restart.", kind="count", optional=True),
            Column(
                key="refused", title="refused", how="Connections without the run's keys.", kind="count", optional=True
            ),
            Column(key="malformed", title="malformed", how="Messages that made no sense.", kind="count", optional=True),
        ),
        rows=rows,
    )
